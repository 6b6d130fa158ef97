//! Expiration of a branch that is mounted.

use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;

use crate::common::writing::{GROUP, Writable, put};
use crate::common::{block_on, lab, run_on, wait_until};

/// The question names work that will have no branch afterwards.
#[test]
fn expire_names_the_mounts_of_branches_that_it_will_delete() {
    let main = Writable::new(&[]);
    put(&main.root().join("zarr.json"), GROUP).unwrap();
    main.commit("root").unwrap();
    let repo = main.repository();
    run_on(repo, &["branch", "create", "dev"]).success();
    run_on(repo, &["branch", "create", "unused"]).success();
    let mount = Writable::of(repo, &["--branch", "dev"]);
    put(&mount.root().join("new/zarr.json"), GROUP).unwrap();
    let expire = |words: &[&str]| {
        run_on(repo, &[&["expire", "--older-than", "0s", "--delete-expired-branches"], words].concat())
    };
    // Commits of this second are not older than now.
    wait_until("the commits are old enough", || expire(&["--dry-run"]).all().contains("would delete branch `dev`"));
    let place = mount.root().display().to_string();
    let mounted = "Branch `dev` will be deleted. The branch is";
    let question = expire(&[]).failure();
    assert!(question.contains(mounted) && question.contains(&place), "{question}");
    assert!(!question.contains("Branch `unused`") && question.contains("would delete branch `unused`"), "{question}");
    let dry = expire(&["--dry-run"]);
    assert!(dry.stderr.contains(mounted) && dry.stderr.contains(&place), "{}", dry.all());
    let done = expire(&["--yes"]);
    assert!(done.stderr.contains(mounted) && done.stderr.contains(&place), "{}", done.all());
    done.success();
    assert_eq!(run_on(repo, &["branch", "list", "--json"]).json().as_array().unwrap().len(), 1);
}

/// A repository of version 1 forgets a commit that expires, and with it the base of changes.
#[test]
fn expire_names_the_mounts_of_branches_that_lose_commits_in_version_1() {
    for (version, is_named) in [(SpecVersionBin::V1, true), (SpecVersionBin::V2, false)] {
        let directory = tempfile::tempdir().unwrap();
        let repo = directory.path().join("repo");
        block_on(lab::create(&repo, version, RepositoryConfig::default()));
        let mount = Writable::of(&repo, &[]);
        put(&mount.root().join("zarr.json"), GROUP).unwrap();
        mount.commit("one").unwrap();
        put(&mount.root().join("mine/zarr.json"), GROUP).unwrap();
        run_on(&repo, &["run", "-m", "two", "--", "sh", "-c", &format!("mkdir x; echo '{GROUP}' > x/zarr.json")])
            .success();
        let expire = || run_on(&repo, &["expire", "--older-than", "0s", "--dry-run"]);
        wait_until("the commits are old enough", || expire().all().contains("would remove"));
        let dry = expire().stderr;
        let place = mount.root().display().to_string();
        assert_eq!(dry.contains("Branch `main` loses commits.") && dry.contains(&place), is_named, "{dry}");
    }
}
