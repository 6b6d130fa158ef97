//! `icechunkfs ls --view`: lists the files of a view.

use std::ops::Range;

use serde::Serialize;

use super::ls::LsArgs;
use super::open;
use super::output::{Lines, print_json_list};
use super::table::Columns;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::memory::Meter;
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::directory::{Entry, Extent};
use icechunkfs_tree::tree::{Attributes, Kind};
use icechunkfs_views::views::{self, ViewTree};

/// Most levels of directories: those of a path that Linux can have.
const MAX_DEPTH: usize = 2048;

#[derive(Serialize)]
struct FileRow {
    path: String,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

/// Files of a view by their names: the paths of nested directories would be many times longer.
struct Listing {
    /// Files and directories, those of one directory in a row.
    files: Vec<Listed>,
    /// Path of the directory with the first ones.
    above: String,
    memory: Meter,
}

struct Listed {
    name: String,
    attributes: Attributes,
    is_sized: bool,
    depth: usize,
    /// Positions of the files inside, if it is a directory that was listed.
    inside: Range<usize>,
}

/// Prints the files of a directory of the view, or one file.
pub(super) fn run(arguments: &LsArgs) -> Result<()> {
    let spec = arguments.reference.spec()?;
    open::run(async {
        let repository = arguments.repo.open_with(&arguments.virtuals).await?;
        let tree = open::tree(&repository, &spec, open::MemoryLimits::default()).await?;
        let view = arguments.view.options()?.make(tree, repository.storage().location()).await?;
        let start = views::resolve(&*view, &arguments.path).await.context(|| spec.to_string())?;
        let path: String = arguments.path.split('/').filter(|part| !part.is_empty()).map(|p| format!("/{p}")).collect();
        let listing = Listing::of(&*view, path, start, arguments.recursive).await?;
        if !arguments.json {
            return listing.print_text();
        }
        let rows = async |print: &mut dyn FnMut(&FileRow) -> Result<()>| {
            listing.for_each(|path, file| {
                print(&FileRow { path: path.to_owned(), kind: file.kind(), bytes: file.bytes() })
            })
        };
        print_json_list(rows).await
    })
}

impl Listing {
    /// Lists directory `start` at `path`, with all below it if `is_recursive`, or the file `start`.
    async fn of(view: &dyn ViewTree, path: String, start: Attributes, is_recursive: bool) -> Result<Self> {
        let mut listing = Listing { files: Vec::new(), above: path, memory: Meter::new("the files of the view") };
        if start.kind == Kind::File {
            let (above, name) = listing.above.rsplit_once('/').unwrap_or_default();
            let above = above.to_owned();
            let name = name.to_owned();
            listing.files.push(Listed { name, attributes: start, is_sized: true, depth: 0, inside: 0..0 });
            listing.above = above;
            return Ok(listing);
        }
        listing.add(view, start.inode, 0).await?;
        let mut at = 0;
        while let Some(file) = listing.files.get(at).filter(|_| is_recursive) {
            if file.attributes.kind == Kind::Directory {
                let inode = file.attributes.inode;
                let depth = file.depth + 1;
                if depth > MAX_DEPTH {
                    return Err(Error::new(ErrorKind::Unsupported, format!("more than {MAX_DEPTH} levels")));
                }
                let inside = listing.add(view, inode, depth).await?;
                if let Some(file) = listing.files.get_mut(at) {
                    file.inside = inside;
                }
            }
            at += 1;
        }
        Ok(listing)
    }

    /// Adds the entries of directory `inode`, and returns their positions.
    async fn add(&mut self, view: &dyn ViewTree, inode: Ino, depth: usize) -> Result<Range<usize>> {
        let first = self.files.len();
        let mut counted = Ok(());
        let mut sink = |entry: Entry<'_>| {
            if [".", ".."].contains(&entry.name) {
                return true;
            }
            // Each is also put into order.
            let bytes = 3 * size_of::<Listed>() + entry.name.len();
            counted = self.memory.count(bytes as u64);
            if counted.is_ok() {
                let name = entry.name.to_owned();
                let attributes = entry.attributes;
                let is_sized = entry.is_sized;
                self.files.push(Listed { name, attributes, is_sized, depth, inside: 0..0 });
            }
            counted.is_ok()
        };
        view.list(inode, 0, Extent::All, &mut sink).await?;
        counted?;
        Ok(first..self.files.len())
    }

    /// Calls `visit` for each file with its path, in the order of the paths if directories were
    /// listed below others.
    fn for_each(&self, mut visit: impl FnMut(&str, &Listed) -> Result<()>) -> Result<()> {
        let top = 0..self.files.iter().take_while(|file| file.depth == 0).count();
        let mut path = self.above.clone();
        if self.files.len() == top.len() {
            for file in &self.files {
                visit(&format!("{path}/{}", file.name), file)?;
            }
            return Ok(());
        }
        // Each directory with what is left of it, and the length of its path.
        let mut open = vec![(self.steps(top).into_iter(), path.len())];
        while let Some((steps, length)) = open.last_mut() {
            path.truncate(*length);
            let Some(Step { file, is_inside }) = steps.next() else {
                open.pop();
                continue;
            };
            let Some(file) = self.files.get(file) else { continue };
            path.push('/');
            path.push_str(&file.name);
            if is_inside {
                let length = path.len();
                open.push((self.steps(file.inside.clone()).into_iter(), length));
            } else {
                visit(&path, file)?;
            }
        }
        Ok(())
    }

    /// Returns the steps through a directory: its files, and what is inside them, by the bytes of
    /// the paths.
    fn steps(&self, files: Range<usize>) -> Vec<Step> {
        let name = |step: &Step| {
            let name = self.files.get(step.file).map(|file| file.name.bytes()).into_iter().flatten();
            name.chain(step.is_inside.then_some(b'/'))
        };
        let step = |file, is_inside| Step { file, is_inside };
        let mut steps: Vec<Step> = files.clone().map(|file| step(file, false)).collect();
        let is_open = |file: &usize| self.files.get(*file).is_some_and(|file| !file.inside.is_empty());
        steps.extend(files.filter(is_open).map(|file| step(file, true)));
        steps.sort_by(|a, b| name(a).cmp(name(b)));
        steps
    }

    fn print_text(&self) -> Result<()> {
        let cells =
            |file: &Listed| [file.kind().to_owned(), file.bytes().map(|bytes| bytes.to_string()).unwrap_or_default()];
        let head = ["kind", "bytes"];
        let mut columns = Columns::new(&head, 1..2);
        self.files.iter().for_each(|file| columns.fit(&cells(file)));
        let mut out = Lines::new();
        out.line(format_args!("{}path", columns.padded(&head)))?;
        self.for_each(|path, file| out.line(format_args!("{}{path}", columns.padded(&cells(file)))))?;
        out.end()
    }
}

/// Step of the walk through a directory: to a file, or to what is inside it.
struct Step {
    file: usize,
    is_inside: bool,
}

impl Listed {
    fn kind(&self) -> &'static str {
        match self.attributes.kind {
            Kind::Directory => "directory",
            Kind::File => "file",
        }
    }

    /// Returns the size of a file, if it is known.
    fn bytes(&self) -> Option<u64> {
        (self.attributes.kind == Kind::File && self.is_sized).then_some(self.attributes.size)
    }
}
