//! `icechunkfs ls --view`: lists the files of a view.

use serde::Serialize;

use super::ls::LsArgs;
use super::{open, print_result, table};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::printable;
use crate::tree::directory::{Entry, Extent};
use crate::tree::{Attributes, Kind};
use crate::views::{self, ViewTree};

/// Most levels of directories: those of a path that Linux can have.
const MAX_DEPTH: usize = 2048;

#[derive(Serialize)]
struct FileRow {
    path: String,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

/// Prints the files of a directory of the view, or one file.
pub(super) fn run(arguments: &LsArgs) -> Result<()> {
    let spec = arguments.reference.spec()?;
    let rows = open::runtime()?.block_on(async {
        let repository = arguments.repo.open_with(&arguments.virtuals).await?;
        let tree = open::tree(&repository, &spec, open::MemoryLimits::default()).await?;
        let view = arguments.view.options()?.make(tree, repository.storage().location()).await?;
        let start = views::resolve(&*view, &arguments.path).await.context(|| spec.to_string())?;
        let path: String = arguments.path.split('/').filter(|part| !part.is_empty()).map(|p| format!("/{p}")).collect();
        let mut rows = Vec::new();
        if start.kind == Kind::File {
            rows.push(row(path, start, true));
            return Ok(rows);
        }
        let mut open = vec![(path, start, 0)];
        while let Some((path, directory, depth)) = open.pop() {
            if depth > MAX_DEPTH {
                return Err(Error::new(ErrorKind::Unsupported, format!("{path}: more than {MAX_DEPTH} levels")));
            }
            for (name, attributes, is_sized) in entries(&*view, directory.inode).await? {
                let path = format!("{path}/{name}");
                if arguments.recursive && attributes.kind == Kind::Directory {
                    open.push((path.clone(), attributes, depth + 1));
                }
                rows.push(row(path, attributes, is_sized));
            }
        }
        if arguments.recursive {
            rows.sort_by(|a, b| a.path.cmp(&b.path));
        }
        Ok::<_, Error>(rows)
    })?;
    print_result(arguments.json, &rows, || to_text(&rows))
}

fn row(path: String, attributes: Attributes, is_sized: bool) -> FileRow {
    match attributes.kind {
        Kind::Directory => FileRow { path, kind: "directory", bytes: None },
        Kind::File => FileRow { path, kind: "file", bytes: is_sized.then_some(attributes.size) },
    }
}

/// Returns the entries of directory `inode`, and of each whether its size is known.
async fn entries(view: &dyn ViewTree, inode: u64) -> Result<Vec<(String, Attributes, bool)>> {
    let mut entries = Vec::new();
    let mut sink = |entry: Entry<'_>| {
        if ![".", ".."].contains(&entry.name) {
            entries.push((entry.name.to_owned(), entry.attributes, entry.is_sized));
        }
        true
    };
    view.list(inode, 0, Extent::All, &mut sink).await?;
    Ok(entries)
}

fn to_text(rows: &[FileRow]) -> String {
    let cells = |row: &FileRow| {
        let bytes = row.bytes.map(|bytes| bytes.to_string()).unwrap_or_default();
        vec![row.kind.to_owned(), bytes, printable::line(&row.path)]
    };
    let head = ["kind", "bytes", "path"].map(str::to_owned).to_vec();
    let cells: Vec<_> = std::iter::once(head).chain(rows.iter().map(cells)).collect();
    table::lines(&cells, 1..2).join("\n") + "\n"
}
