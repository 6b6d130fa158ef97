//! Virtual chunks of hostile web servers.

use std::collections::BTreeMap;
use std::time::Duration;

use super::measure::{Client, command, complaint, measure, side_by_side};
use crate::common::hostile::{BUCKET, Lie, Store, To};
use crate::common::made::{reference, repository};

#[test]
fn reading_a_virtual_chunk_from_a_hostile_server_ends() {
    let lies = [
        Lie::Silent,
        Lie::HeadDrip,
        Lie::BodyDrip,
        Lie::HugeClaim,
        Lie::EndlessBody,
        Lie::EndlessChunks,
        Lie::OverflowingRange,
        Lie::Redirects,
        Lie::Gzip,
        Lie::EndlessHeaders,
        Lie::GarbledChunks,
        Lie::EndlessRefusal,
        Lie::EndlessOverload,
    ];
    let complaints = side_by_side(lies.to_vec(), |&lie| {
        let object: Vec<u8> = (0..1_u32 << 20).map(|n| (n % 251) as u8).collect();
        let store = Store::new(BTreeMap::from([("v/file".to_owned(), (object, 1))]));
        let directory = tempfile::tempdir().unwrap();
        let url = format!("http://127.0.0.1:{}/{BUCKET}/v/", store.port);
        let made =
            repository(&directory.path().join("repo"), Vec::new(), &[reference(format!("{url}file"), 10, 100_000)]);
        let words = ["cat", made.to_str().unwrap(), "v/c/0", "--allow-virtual", &url];
        let honest = measure(&mut command(Client::Web, &store, &words));
        assert!(honest.success, "{}", honest.stderr);
        store.lie(To::All, lie);
        let outcome = measure(&mut command(Client::Web, &store, &words));
        assert!(store.lies() > 0);
        // The rest of a body beyond the requested range is not read.
        let may_succeed = matches!(lie, Lie::EndlessBody | Lie::EndlessChunks | Lie::Informational);
        complaint(&outcome, Duration::from_millis(300))
            .or_else(|| (outcome.success && !may_succeed).then(|| "it succeeded".to_owned()))
    });
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
