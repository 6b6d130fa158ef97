//! Expiration of a branch that is mounted.

use crate::common::writing::{GROUP, Writable, put};
use crate::common::{run_on, wait_until};

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
