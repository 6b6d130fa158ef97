//! Snapshots, and the table of nodes made from them.

use super::file;
use icechunkfs::format::snapshot::Snapshot;
use icechunkfs::inodes::Ino;
use icechunkfs::tree::nodes::NodeTable;

pub(crate) fn run(payload: &[u8]) {
    let Ok(snapshot) = Snapshot::decode(&file::around(1, payload), 1 << 24) else { return };
    let _ = (snapshot.metadata(), snapshot.parent_id(), snapshot.manifests());
    let Ok(table) = NodeTable::build(&snapshot) else { return };
    for index in 0..table.len().min(1000) as u32 {
        let Some(node) = table.get(index) else { continue };
        for offset in 0..8 {
            let inode = Ino(node.base.0 + offset);
            if let Some(place) = table.place(inode) {
                assert_eq!(table.inode(&place), inode);
            }
        }
        for &child in table.children(index) {
            assert_eq!(table.child(index, table.name(child)), Some(child));
        }
    }
}
