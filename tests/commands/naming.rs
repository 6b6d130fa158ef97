//! Words that people type first: a mountpoint or an abbreviated id where a repository or a commit
//! is expected, actions before repositories. And mistakes, which are told with the next command.

use std::path::Path;
use std::process::Command;

use icechunk::format::format_constants::SpecVersionBin;

use super::restore::empty;
use crate::common::writing::{GROUP, Writable, array};
use crate::common::{self, Mount, icechunkfs, run_on};

#[test]
fn a_path_in_a_mount_names_its_repository() {
    let (_directory, place, reference) = empty(SpecVersionBin::V2);
    reference.commit(&[("zarr.json", GROUP.as_bytes()), ("a/zarr.json", array(&[4], &[1]).as_bytes())], "an array");
    let mount = Mount::new(&place, &[]);
    let expected = run_on(&place, &["log"]).text();
    for named in [mount.path().to_owned(), mount.path().join("a"), mount.path().join("a/zarr.json")] {
        assert_eq!(run_on(&named, &["log"]).text(), expected, "{named:?}");
    }
    run_on(mount.path(), &["tag", "create", "v1"]).success();
    assert!(run_on(&place, &["log"]).text().contains("(main, tag v1)"));
    // The text of a path proves nothing, and what is not there is in no mount.
    for elsewhere in ["../nothing", "nothing", "a/../../nothing"] {
        let run = |words: &[&str]| {
            let mut command = std::process::Command::new(crate::common::program());
            crate::common::run(command.args(words).current_dir(mount.path()))
        };
        run(&["branch", elsewhere, "create", "dev"]).failure();
        run(&["log", elsewhere]).failure();
    }
    // Commands act on branch main, which that mount does not show.
    run_on(&place, &["branch", "create", "dev"]).success();
    let dev = Mount::new(&place, &["--branch", "dev", "-o", "ro"]);
    let told = run_on(dev.path(), &["log"]).failure();
    assert!(told.contains("a mount of branch dev") && told.contains(&place.display().to_string()), "{told}");
}

#[test]
fn commits_are_listed_as_they_can_be_named() {
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let (_directory, place, reference) = empty(version);
        reference.commit(&[("zarr.json", GROUP.as_bytes())], "the first\n\nwith a text");
        reference.commit(&[("a/zarr.json", array(&[4], &[1]).as_bytes())], "the second");
        let lines = run_on(&place, &["log", "--oneline"]).text();
        let lines: Vec<&str> = lines.lines().collect();
        assert!(lines[0].ends_with(" (main) the second") && lines[1].ends_with(" the first"), "{lines:?}");
        let (id, _) = lines[1].split_once(' ').unwrap();
        run_on(&place, &["branch", "create", "old", "--at", &id[..12].to_lowercase()]).success();
        let listed = run_on(&place, &["branch"]).text();
        assert!(listed.lines().any(|line| line.starts_with(id) && line.ends_with("old")), "{listed}");
        let text = run_on(&place, &["log"]).text();
        assert!(text.starts_with("commit ") && !text.contains("__icechunk"), "{text}");
        for short in [&id[..8], &id[..7].to_lowercase()] {
            assert_eq!(
                run_on(&place, &["log", "--snapshot", short]).text(),
                run_on(&place, &["log", "--snapshot", id]).text()
            );
        }
        let mount = Mount::new(&place, &["--snapshot", &id[..8]]);
        let info = std::fs::read_to_string(mount.path().join(".icechunk/info.json")).unwrap();
        assert!(info.contains(&format!("\"ref\": \"{id}\"")), "{info}");
        let unknown = run_on(&place, &["ls", "--snapshot", "ZZZZZZZ"]).failure();
        assert!(unknown.contains("begins with `ZZZZZZZ`"), "{unknown}");
        let unknown = run_on(&place, &["diff", "ZZZZZ", "main"]).failure();
        assert!(unknown.contains("no branch, tag or snapshot `ZZZZZ`"), "{unknown}");
    }
}

#[test]
fn actions_may_come_before_the_repository_or_be_left_out() {
    let (_directory, place, reference) = empty(SpecVersionBin::V2);
    reference.commit(&[("zarr.json", GROUP.as_bytes())], "a group");
    let place = place.to_str().unwrap();
    icechunkfs(["tag", "create", place, "v1"]).success();
    icechunkfs(["branch", "create", place, "dev"]).success();
    assert_eq!(icechunkfs(["tag", place]).text(), icechunkfs(["tag", place, "list"]).text());
    assert_eq!(icechunkfs(["branch", place, "--json"]).json(), icechunkfs(["branch", place, "list", "--json"]).json());
    assert_eq!(icechunkfs(["config", place]).text(), icechunkfs(["config", place, "get"]).text());
}

#[test]
fn what_is_no_repository_is_named() {
    let (directory, place, _reference) = empty(SpecVersionBin::V2);
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("a.nc"), b"CDF\x01").unwrap();
    std::fs::write(at("b.nc"), b"\x89HDF\r\n\x1a\n").unwrap();
    // As files of MATLAB are.
    std::fs::write(at("c.mat"), [[b' '; 512].as_slice(), b"\x89HDF\r\n\x1a\n"].concat()).unwrap();
    std::fs::write(at("d.grb"), b"GRIB").unwrap();
    std::fs::write(at("e.tif"), b"II*\0").unwrap();
    for (folder, name) in [("three", "zarr.json"), ("two", ".zgroup")] {
        std::fs::create_dir(at(folder)).unwrap();
        std::fs::write(at(folder).join(name), "{}").unwrap();
    }
    std::fs::create_dir(at("mnt")).unwrap();
    let told = |words: &[&str]| icechunkfs(words).failure();
    let path = |name: &str| at(name).display().to_string();
    let classic = told(&["log", &path("a.nc")]);
    assert!(classic.contains("is a NetCDF file, not a repository: `icechunkfs import "), "{classic}");
    for name in ["b.nc", "c.mat"] {
        let hdf5 = told(&["mount", &path(name), &path("mnt")]);
        assert!(hdf5.contains("is a NetCDF-4 or HDF5 file") && hdf5.contains("icechunkfs import"), "{hdf5}");
    }
    assert!(told(&["log", &path("d.grb")]).contains("is a GRIB file, not a repository"));
    assert!(told(&["log", &path("e.tif")]).contains("is a TIFF file, not a repository"));
    assert!(told(&["log", &path("three")]).contains("`icechunkfs import "));
    assert!(told(&["log", &path("two")]).contains("version 2"));
    assert!(told(&["log", "s3:/bucket/x"]).contains("did you mean s3://bucket/x?"));
    let place = place.to_str().unwrap();
    let swapped = told(&["mount", &path("mnt"), place]);
    assert!(swapped.contains("are the arguments swapped") && !swapped.contains("nonempty"), "{swapped}");
    let unmounted = told(&["status", place]);
    assert!(unmounted.contains("is a repository: icechunkfs mount "), "{unmounted}");
    for time in ["3d", "2026-08-20 14:30"] {
        // Long before the repository was made.
        let early = run_on(place, &["log", &format!("--as-of={time}")]).failure();
        assert!(early.contains("has no commit as old as"), "{early}");
    }
}

#[test]
fn what_is_to_be_imported_is_named_and_a_failure_leaves_nothing() {
    let (directory, place, _reference) = empty(SpecVersionBin::V2);
    let at = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(at("a.nc"), b"CDF\x01").unwrap();
    std::fs::write(at("a.h5"), b"\x89HDF\r\n\x1a\n").unwrap();
    std::fs::write(at("a.tif"), b"II*\0").unwrap();
    for (folder, name) in [("three", "zarr.json"), ("two", ".zgroup")] {
        std::fs::create_dir(at(folder)).unwrap();
        std::fs::write(Path::new(&at(folder)).join(name), "{}").unwrap();
    }
    let new = at("below/new");
    let told = |source: &str, repo: &str| icechunkfs(["import", source, repo]).failure();
    for (source, words) in [
        (at("a.nc"), "a.nc: the header"),
        (at("a.h5"), "a.h5: it is not a whole HDF5 file"),
        (at("a.tif"), "is a TIFF file, neither a directory of Zarr files nor a NetCDF or HDF5 file"),
        (at("nothing"), "no such file or directory"),
        (at("two"), "two: .zgroup: missing field"),
        (at("three"), "zarr.json"),
        ("ftp://example.org/a".to_owned(), "only file, s3, gs, az, http, https and vcc can be read"),
        (format!("file://{}", at("a.tif")), "is a TIFF file, neither"),
    ] {
        let said = told(&source, &new);
        assert!(said.contains(words), "{said}");
        assert!(!Path::new(&at("below")).exists(), "{source}");
    }
    let swapped = told(place.to_str().unwrap(), &at("three"));
    assert!(swapped.contains("are the arguments swapped"), "{swapped}");
    // A word like a URL makes no directory.
    let refused = common::run(Command::new(common::program()).args(["init", "s3:/b/x"]).current_dir(directory.path()));
    assert!(refused.failure().contains("did you mean s3://b/x?"));
    assert!(!Path::new(&at("s3:")).exists());
    // A directory called `repo` does not make a repository of what it is in.
    std::fs::create_dir_all(at("work/repo")).unwrap();
    let refused = icechunkfs(["mount", place.to_str().unwrap(), &at("work")]).failure();
    assert!(!refused.contains("swapped"), "{refused}");
}

#[test]
fn a_command_line_that_is_not_understood_is_answered_with_what_was_meant() {
    for (line, words) in [
        ("checkout repo", "mount REPO MOUNTPOINT --branch"),
        ("stash", "scratch directory"),
        ("fsck repo", "icechunkfs verify REPO"),
        ("reflog", "icechunkfs undo REPO"),
        ("s3://b/x mnt", "icechunkfs mount s3://b/x mnt"),
        ("branch repo -d dev", "icechunkfs branch REPO delete NAME"),
        ("branch repo newb", "icechunkfs branch REPO create newb"),
        ("branch repo reset main v1", "--to v1"),
        ("tag repo create v1 main~1", "--at main~1"),
        ("mount repo mnt dev", "--branch dev"),
        ("mount -t icechunkfs repo mnt", "type of the file system"),
        ("commit mnt message", "-m MESSAGE"),
        ("commit -a -m x", "not needed"),
        ("run repo ls", "-- ls"),
        ("log", "`.` in a mount"),
        ("diff repo main..v1", "icechunkfs diff REPO main v1"),
        ("branch create trial", "icechunkfs branch REPO create NAME"),
        ("ls repo --at v1", "--tag NAME"),
        ("push a b --branch x", "after DEST"),
        ("config repo compression.level", "config REPO get compression.level"),
        ("tag repo move v1 --at main", "tags never change"),
    ] {
        let said = icechunkfs(line.split(' ')).failure();
        assert!(said.contains(words) && said.contains("Examples:"), "{line}: {said}");
        assert!(!said.contains("'-- -") && !said.contains("similar"), "{line}: {said}");
    }
    // Names that other tools use are accepted.
    for line in
        ["mount --ro none mnt", "log --no-sign-request none", "branch none create x --from main", "unmount -l none"]
    {
        let said = icechunkfs(line.split(' ')).failure();
        assert!(!said.contains("unexpected"), "{line}: {said}");
    }
    assert_eq!(icechunkfs(["--version"]).status.code(), Some(0));
    assert_eq!(icechunkfs(["chekout"]).status.code(), Some(2));
}

/// Another user's mount, a repository that is mounted, a ref in the place of a path.
#[test]
fn what_is_not_the_thing_that_was_meant_is_told() {
    let (_directory, place, reference) = empty(SpecVersionBin::V2);
    reference.commit(&[("zarr.json", GROUP.as_bytes())], "a group");
    run_on(&place, &["tag", "create", "v1"]).success();
    for (command, words) in [("log", "--branch 'main'"), ("ls", "--branch 'main'"), ("show", "--branch 'main'")] {
        let said = run_on(&place, &[command, "main"]).failure();
        assert!(said.contains(words), "{said}");
        assert!(run_on(&place, &[command, "v1"]).failure().contains("--tag 'v1'"));
    }
    let mount = Mount::new(&place, &[]);
    let said = run_on(&place, &["status"]).failure();
    assert!(said.contains(&format!("mounted at {}", mount.path().display())), "{said}");
    assert!(run_on(mount.path(), &["discard"]).text().contains("no changes"));
    let said = run_on(&place, &["migrate"]).failure();
    assert!(said.contains("version 2 already"), "{said}");
    if common::is_root() {
        let mut other = Command::new("setpriv");
        other.args(["--reuid=65534", "--regid=65534", "--clear-groups", common::program()]);
        let said = common::run(other.arg("unmount").arg(mount.path())).failure();
        assert!(said.contains("user 0") || said.contains("Permission denied"), "{said}");
    }
}

/// The directory of a repository may be reached by a link: changes are kept under its real path.
#[test]
fn an_unmount_says_which_mount_shows_the_changes_again() {
    let (directory, place, reference) = empty(SpecVersionBin::V2);
    reference.commit(&[("zarr.json", GROUP.as_bytes())], "a group");
    let at = |name: &str| directory.path().join(name);
    std::os::unix::fs::symlink(&place, at("link")).unwrap();
    std::fs::create_dir(at("mnt")).unwrap();
    let _mount = common::Unmounted(vec![at("mnt")]);
    let scratch = at("scratch").display().to_string();
    for (words, told) in [(&[][..], "the next mount resumes"), (&["--scratch", &scratch], "`--scratch")] {
        let mut mount = Command::new(common::program());
        mount.arg("mount").args([at("link"), at("mnt")]).args(words).env("XDG_STATE_HOME", at("state"));
        common::run(&mut mount).success();
        std::fs::create_dir(at("mnt/g")).unwrap();
        std::fs::write(at("mnt/g/zarr.json"), GROUP).unwrap();
        let said = icechunkfs(["unmount", at("mnt").to_str().unwrap()]).stderr;
        assert!(said.contains(told) && said.contains("1 node, 0 chunks"), "{said}");
    }
    common::remove_default_scratch(directory.path());
}

#[test]
fn a_store_that_is_not_reached_is_told_in_few_words() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let said = icechunkfs(["log", &format!("http://{closed}/x"), "--timeout", "2"]).failure();
    assert!(said.contains(&format!("{closed} refuses connections")) && !said.contains("retries"), "{said}");
}

/// Answers one request after another with `answer`. Returns the address.
fn server_with(answer: &'static str) -> std::net::SocketAddr {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            let mut request = [0; 4096];
            let _ = connection.read(&mut request);
            let _ = connection.write_all(answer.as_bytes());
        }
    });
    address
}

#[test]
fn a_store_that_speaks_no_tls_or_refuses_strangers_is_told_as_such() {
    let refusing = server_with("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    let words =
        |scheme: &str| ["--endpoint-url", &format!("{scheme}://{refusing}"), "--region", "x"].map(str::to_owned);
    let log = |scheme: &str, more: &[&str]| {
        let mut command = Command::new(common::program());
        command.args(["log", "s3://bucket/x", "--timeout", "5"]).args(words(scheme)).args(more);
        command.env("AWS_ACCESS_KEY_ID", "a").env("AWS_SECRET_ACCESS_KEY", "b");
        common::run(&mut command).failure()
    };
    let without_tls = log("https", &[]);
    assert!(without_tls.contains("does not speak TLS: use http://"), "{without_tls}");
    let stranger = log("http", &["--anonymous"]);
    assert!(stranger.contains("sent without credentials; omit --anonymous"), "{stranger}");
    let known = log("http", &[]);
    assert!(known.contains("these credentials do not allow it"), "{known}");
}

#[test]
fn a_busy_mount_names_the_program() {
    let (_directory, place, _reference) = empty(SpecVersionBin::V2);
    let mount = Writable::of(&place, &[]);
    let mut child = Command::new("sleep").arg("60").current_dir(mount.root()).spawn().unwrap();
    let refused = icechunkfs(["unmount", mount.root().to_str().unwrap()]);
    child.kill().unwrap();
    child.wait().unwrap();
    let refused = refused.failure();
    assert!(refused.contains(&format!("{} sleep (working directory)", child.id())), "{refused}");
    let inside = icechunkfs(["status", mount.root().join(".icechunk/log").to_str().unwrap()]).failure();
    assert!(inside.contains("is inside the mount at"), "{inside}");
}

/// `to_zarr(MOUNTPOINT, mode="w")` deletes everything, and cannot remove the mountpoint.
#[test]
fn an_emptied_root_is_told_with_the_way_back() {
    let (_directory, place, reference) = empty(SpecVersionBin::V2);
    reference.commit(&[("zarr.json", GROUP.as_bytes()), ("a/zarr.json", array(&[4], &[1]).as_bytes())], "an array");
    let mount = Writable::of(&place, &[]);
    assert!(!mount.read_control("errors").contains("--subdir"));
    std::fs::remove_dir_all(mount.root().join("a")).unwrap();
    assert!(!mount.read_control("status").contains("--subdir"));
    std::fs::remove_file(mount.root().join("zarr.json")).unwrap();
    assert!(std::fs::remove_dir(mount.root()).is_err());
    for file in ["status", "errors"] {
        let text = mount.read_control(file);
        assert!(text.contains("icechunkfs discard ") && text.contains("--subdir NAME"), "{file}: {text}");
    }
    run_on(mount.root(), &["discard"]).success();
    assert!(mount.root().join("a/zarr.json").exists() && !mount.read_control("status").contains("--subdir"));
}
