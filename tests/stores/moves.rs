//! Writable mounts that move while a store takes long to answer.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::faulty::{Fault, Line};
use crate::common::moto::{commit, fill, icechunkfs, mount, repository, s3};
use crate::common::writing::{put, touch};
use crate::common::{wait_until, watchdog};

/// Chunk of a manifest that no lookup before has read.
const CHUNK: &str = "a/c/35";
/// Manifests of ten chunks.
const SPLIT: &str = r#"{"split_sizes": [["any_array", [{"condition": "Any", "num_chunks": 10}]]]}"#;

/// Looks at the length of a chunk, in some way.
type Look = fn(&Path) -> u64;

/// Each way to learn of a length, begun before the mount moves and ended after it: the kernel must
/// not keep the old one for the new bytes. Newer kernels do not trust an answer if they have
/// dropped an inode meanwhile, hence several rounds.
#[test]
fn a_length_that_was_asked_for_before_a_move_is_that_after_it() {
    watchdog();
    let Some(server) = s3() else { return };
    let by_name: Look = |root| fs::metadata(root.join(CHUNK)).unwrap().len();
    let by_listing: Look = |root| {
        let entries = fs::read_dir(root.join("a/c")).unwrap();
        entries.map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
    };
    for (round, (name, look)) in [("name", by_name), ("listing", by_listing)].repeat(3).into_iter().enumerate() {
        let repo = repository(&format!("moves-{round}"));
        icechunkfs(server.port, &["init", &repo, "--zarr-group"]).success();
        icechunkfs(server.port, &["config", &repo, "set", "manifest.splitting", SPLIT]).success();
        let other = mount(server.port, &repo, &["--ephemeral"]);
        fill(&other.path(), 0);
        commit(&other).unwrap();
        let line = Line::to(server.port);
        let reader = mount(line.port, &repo, &["--ephemeral", "--ahead", "0", "--timeout", "60"]);
        let root = reader.path();
        let bytes = vec![7; 123_456];
        fs::metadata(root.join("a/c/1")).unwrap();
        line.wait_until_quiet();
        // The first manifest that is asked for from now on is one of the old snapshot.
        let first: Arc<Mutex<Option<String>>> = Arc::default();
        let asked = Arc::clone(&first);
        line.decide(move |_, request| {
            if !request.contains("/manifests/") {
                return Fault::Pass;
            }
            let mut first = asked.lock().unwrap();
            if first.get_or_insert_with(|| request.to_owned()) == request { Fault::Silent } else { Fault::Pass }
        });
        let found = std::thread::scope(|scope| {
            let looking = scope.spawn(|| look(&root));
            wait_until("the manifest is asked for", || first.lock().unwrap().is_some());
            put(&other.path().join(CHUNK), &bytes).unwrap();
            commit(&other).unwrap();
            let head = || fs::read_to_string(reader.control("HEAD")).unwrap();
            let before = head();
            let moving = scope.spawn(|| touch(&reader.control("refresh")));
            wait_until("the mount moves", || head() != before);
            std::thread::sleep(Duration::from_millis(300));
            line.release();
            moving.join().unwrap().unwrap();
            looking.join().unwrap()
        });
        assert!(name == "listing" || found == bytes.len() as u64, "{found}");
        assert_eq!(fs::metadata(root.join(CHUNK)).unwrap().len(), bytes.len() as u64, "by {name}");
        assert!(fs::read(root.join(CHUNK)).unwrap() == bytes, "by {name}");
    }
}
