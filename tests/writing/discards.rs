//! A discard of a path keeps the changes elsewhere: links, and chunks that were moved to another
//! array.

use std::path::Path;

use crate::common::writing::{GROUP, Writable, array, put};
use crate::common::{icechunkfs, read_files};

/// Creates a mount with the committed arrays `a` and `b`, and the group `g` with the array `g/n`.
fn mounted() -> Writable {
    let mount = Writable::new(&[]);
    let root = mount.root();
    put(&root.join("zarr.json"), GROUP).unwrap();
    put(&root.join("g/zarr.json"), GROUP).unwrap();
    for node in ["a", "b", "g/n"] {
        put(&root.join(node).join("zarr.json"), array(&[8, 8], &[1, 1])).unwrap();
        for chunk in ["0/0", "0/1", "1/0"] {
            put(&root.join(node).join("c").join(chunk), format!("{node} {chunk}")).unwrap();
        }
    }
    mount.commit("base").unwrap();
    mount
}

fn discard(mount: &Writable, path: &str) {
    icechunkfs(["discard", mount.root().to_str().unwrap(), path]).success();
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn a_discard_keeps_hard_links_elsewhere() {
    let mount = mounted();
    let root = mount.root();
    // As `cp -al a copy` does.
    for file in ["zarr.json", "c/0/0", "c/0/1", "c/1/0"] {
        std::fs::create_dir_all(root.join("copy").join(file).parent().unwrap()).unwrap();
        std::fs::hard_link(root.join("a").join(file), root.join("copy").join(file)).unwrap();
    }
    std::fs::write(root.join("copy/c/0/1"), "edited").unwrap();
    assert_eq!(text(&root.join("a/c/0/1")), "edited");
    discard(&mount, "/a");
    let check = || {
        assert_eq!(text(&root.join("a/c/0/1")), "a 0/1");
        assert_eq!(text(&root.join("copy/c/0/0")), "a 0/0");
        assert_eq!(text(&root.join("copy/c/0/1")), "edited");
        assert!(read_files(&root.join("copy")).len() == 4 && read_files(&root.join("a")).len() == 4);
    };
    check();
    // They are two files now.
    std::fs::write(root.join("copy/c/0/0"), "of the copy").unwrap();
    assert_eq!(text(&root.join("a/c/0/0")), "a 0/0");
    std::fs::write(root.join("copy/c/0/0"), "a 0/0").unwrap();
    mount.remount();
    check();
    mount.commit("copy").unwrap();
    check();
}

#[test]
fn a_discard_keeps_chunks_that_were_moved_to_another_array() {
    let mount = mounted();
    let root = mount.root();
    std::fs::write(root.join("a/c/0/0"), "edited").unwrap();
    std::fs::rename(root.join("a/c/0/0"), root.join("b/c/0/0")).unwrap();
    std::fs::rename(root.join("a/c/0/1"), root.join("b/c/0/1")).unwrap();
    discard(&mount, "/a");
    let check = || {
        assert_eq!(text(&root.join("a/c/0/0")), "a 0/0");
        assert_eq!(text(&root.join("b/c/0/0")), "edited");
        assert_eq!(text(&root.join("a/c/0/1")), "a 0/1");
        assert_eq!(text(&root.join("b/c/0/1")), "a 0/1");
    };
    check();
    mount.commit("moved").unwrap();
    check();
    mount.remount();
    check();
}

#[test]
fn a_discard_that_would_lose_a_moved_directory_of_chunks_is_refused() {
    let mount = mounted();
    let root = mount.root();
    std::fs::rename(root.join("a/c/0"), root.join("b/c/5")).unwrap();
    std::fs::write(root.join("b/c/5/1"), "edited").unwrap();
    let before = read_files(&root);
    let refused = icechunkfs(["discard", root.to_str().unwrap(), "/a"]).failure();
    assert!(refused.contains("/b/c/5/") && refused.contains("nothing was changed"), "{refused}");
    assert!(read_files(&root) == before);
    // By its present place it goes back.
    discard(&mount, "/b");
    assert_eq!(text(&root.join("a/c/0/1")), "a 0/1");
    assert!(!root.join("b/c/5").exists());
}

#[test]
fn a_discard_of_a_moved_node_shows_nothing_in_two_places() {
    let mount = mounted();
    let root = mount.root();
    let base = read_files(&root);
    std::fs::rename(root.join("a"), root.join("x")).unwrap();
    std::fs::rename(root.join("x/c/0/0"), root.join("b/c/0/0")).unwrap();
    discard(&mount, "/x");
    assert_eq!(text(&root.join("b/c/0/0")), "a 0/0");
    std::fs::write(root.join("a/c/0/0"), "of a").unwrap();
    assert_eq!(text(&root.join("b/c/0/0")), "a 0/0");
    assert_eq!(text(&root.join("a/c/0/0")), "of a");
    mount.touch("discard").unwrap();
    assert!(read_files(&root) == base);

    // A node that was moved out of a moved node goes back with it, unless it has changes of its
    // own.
    std::fs::rename(root.join("g"), root.join("h")).unwrap();
    std::fs::rename(root.join("h/n"), root.join("kept")).unwrap();
    std::fs::write(root.join("kept/c/0/0"), "edited").unwrap();
    let before = read_files(&root);
    let refused = icechunkfs(["discard", root.to_str().unwrap(), "/h"]).failure();
    assert!(refused.contains("/kept/c/0/0"), "{refused}");
    assert!(read_files(&root) == before);
    std::fs::rename(root.join("kept"), root.join("h/n")).unwrap();
    discard(&mount, "/h");
    assert!(read_files(&root) == base);
    std::fs::rename(root.join("g"), root.join("h")).unwrap();
    std::fs::rename(root.join("h/n"), root.join("kept")).unwrap();
    discard(&mount, "/h");
    assert!(read_files(&root) == base);
}
