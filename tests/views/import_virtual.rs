//! `icechunkfs import --virtual`: chunks that stay in the files of an archive, read in a mount and
//! by the reference.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use icechunk::config::Credentials;
use icechunk::format::ChunkIndices;
use icechunk::format::manifest::ChunkPayload;
use serde_json::Value;

use super::netcdf::{compared, python, python_code};
use crate::common::lengths::{length, number};
use crate::common::{Files, Mount, Output, block_on, icechunkfs, lab, read_files, run, run_on};

/// Files of each library in the ordinary run, and in a full one.
const QUICK: usize = 6;
const FULL: usize = 200;

/// Each chunk is referred to, as far as it can be.
pub(super) const ALL: [&str; 4] = ["--virtual", "--set-container", "--copy-below", "0"];

fn import(file: &Path, repo: &Path, options: &[&str]) -> Output {
    icechunkfs([&["import", file.to_str().unwrap(), repo.to_str().unwrap()], options].concat())
}

/// Mounts the repository with the permission to read the references to files below `directory`.
pub(super) fn mount(repo: &Path, directory: &Path) -> Mount {
    Mount::new(repo, &["--allow-virtual", directory.to_str().unwrap()])
}

/// Returns all keys and bytes, or the first error, read by the reference with the same permission.
fn by_reference(repo: &Path, directory: &Path) -> Result<Files, String> {
    reference_with(repo, format!("file://{}/", directory.display()), Credentials::LocalFileSystemAccess)
}

/// Returns what the reference reads with `credentials` for the virtual chunks below `prefix`.
pub(super) fn reference_with(repo: &Path, prefix: String, credentials: Credentials) -> Result<Files, String> {
    block_on(async {
        let storage = icechunk::new_local_filesystem_storage(repo).await.unwrap();
        let allowed = HashMap::from([(prefix, Some(credentials))]);
        let open = icechunk::Repository::open(storage).authorize_virtual_chunk_access(allowed);
        let store = lab::store_at(&open.execute().await.unwrap(), &lab::main_branch()).await;
        let mut keys = Files::new();
        for name in lab::names_in(&store).await {
            let bytes = store.get(&name, &icechunk::format::ByteRange::ALL).await;
            keys.insert(name, bytes.map_err(|error| error.to_string())?.to_vec());
        }
        Ok(keys)
    })
}

#[test]
fn files_of_all_libraries_are_equal_where_they_are() {
    let place = tempfile::tempdir().unwrap();
    // A name that has to be encoded in a location.
    let directory = place.path().join("years 2001–2020");
    fs::create_dir(&directory).unwrap();
    let files = length("ICECHUNKFS_IMPORTS", QUICK, FULL);
    let seed = number("ICECHUNKFS_SEED", 1);
    let words = [seed.to_string(), files.to_string()];
    run(python("import_hdf5.py").arg("make").arg(&directory).args(&words)).success();
    run(python("import_netcdf.py").arg("make").arg(&directory).args(&words)).success();
    let repo = place.path().join("repo");
    let mut referred = 0;
    let mut add = |file: PathBuf, path: &str| {
        let options = [&ALL[..], &["--path", path, "--json"]].concat();
        let report = import(&file, &repo, &options).json();
        referred += report["chunks_virtual"].as_u64().unwrap();
        // The same once more changes nothing.
        assert_eq!(import(&file, &repo, &options).json()["snapshot"], Value::Null, "{path}");
        fs::write(file.with_extension("json"), report.to_string()).unwrap();
    };
    for number in 0..files {
        add(directory.join(format!("{number}.h5")), &format!("f{number}"));
        add(directory.join(format!("{number}.nc")), &format!("c{number}"));
        fs::remove_file(directory.join(format!("{number}.json"))).unwrap();
    }
    for number in 0..files {
        add(directory.join(format!("{number}.h5")), &format!("f{number}"));
    }
    assert!(referred > 20 * files as u64, "{referred}");
    run_on(&repo, &["verify", "--chunks", "--allow-virtual", directory.to_str().unwrap()]).success();
    let mounted = mount(&repo, &directory);
    assert_eq!(by_reference(&repo, &directory).unwrap(), read_files(&mounted.path()));
    let compare = |script| {
        let mut command = python(script);
        command.arg("compare");
        command
    };
    let all = compared(compare("import_hdf5.py").args([&directory, &mounted.path()]), "HDF5");
    assert!(all > 3 * files, "{all}");
    let view = Mount::new(&repo, &["--view", "netcdf", "--allow-virtual", directory.to_str().unwrap()]);
    for number in 0..files {
        let file = directory.join(format!("{number}.nc"));
        let [here, there] = [mounted.path().join(format!("c{number}")), view.path().join(format!("c{number}.nc"))];
        compared(compare("import_netcdf.py").args([&file, &here, &there]), &format!("file {number}"));
    }
}

/// Prints the chunks of all datasets of files `N.h5`, as libhdf5 lists them: `[path, coordinates,
/// offset, length]`.
const CHUNK_TABLES: &str = "
import json, sys, h5py
rows = []
for number in range(int(sys.argv[2])):
    with h5py.File(f'{sys.argv[1]}/{number}.h5') as file:
        # libhdf5 leaves out the first bytes of such a file, and so counts from other places.
        if file.userblock_size:
            continue
        def visit(name, one):
            # libhdf5 2.0 gives wrong coordinates if another dimension than the first can grow.
            if isinstance(one, h5py.Dataset) and one.chunks and None not in one.maxshape[1:]:
                for at in range(one.id.get_num_chunks()):
                    chunk = one.id.get_chunk_info(at)
                    place = [first // length for first, length in zip(chunk.chunk_offset, one.chunks)]
                    rows.append([f'/f{number}/{name}', place, chunk.byte_offset, chunk.size])
        file.visititems(visit)
print(json.dumps(rows))
";

#[test]
fn references_are_the_chunks_that_libhdf5_lists() {
    /// Bytes of a checksum behind a chunk, which the reference leaves out.
    const CHECKSUM: u64 = 4;
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let files = length("ICECHUNKFS_IMPORTS", QUICK, FULL);
    run(python("import_hdf5.py")
        .arg("make")
        .arg(place)
        .args([number("ICECHUNKFS_SEED", 2), files].map(|n| n.to_string())))
    .success();
    let repo = place.join("repo");
    for number in 0..files {
        import(&place.join(format!("{number}.h5")), &repo, &[&ALL[..], &["--path", &format!("f{number}")]].concat())
            .success();
    }
    let rows = run(python_code(CHUNK_TABLES).arg(place).arg(files.to_string())).json();
    let rows: Vec<(String, Vec<u32>, u64, u64)> = serde_json::from_value(rows).unwrap();
    let compared = block_on(async {
        let repository = lab::reopen(&repo).await;
        let session = repository.readonly_session(&lab::main_branch()).await.unwrap();
        let mut compared = 0;
        for (path, coords, offset, length) in &rows {
            let place = path.as_str().try_into().unwrap();
            // What Zarr has no codec for is left out, and a chunk that is beyond the shape, or is
            // put together of others, is none of the file's.
            let Ok(found) = session.get_chunk_ref(&place, &ChunkIndices(coords.clone())).await else { continue };
            let Some(ChunkPayload::Virtual(found)) = found else { continue };
            compared += 1;
            assert_eq!(found.offset, *offset, "{path} {coords:?}");
            assert!(
                [*length, length.saturating_sub(CHECKSUM)].contains(&found.length),
                "{path} {coords:?}: {found:?}, not {length}"
            );
        }
        compared
    });
    assert!(compared > 20 * files && compared > rows.len() / 3, "{compared} of {}", rows.len());
}

/// An archive that refers to a file of 8,192 numbers.
struct Archive {
    place: tempfile::TempDir,
    file: PathBuf,
    repo: PathBuf,
}

impl Archive {
    fn new(options: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("data");
        fs::create_dir(&directory).unwrap();
        let file = directory.join("numbers.nc");
        write(&file, 0);
        let archive = Archive { repo: place.path().join("repo"), file, place };
        let report = import(&archive.file, &archive.repo, &[&["--virtual", "--json"], options].concat()).json();
        assert_eq!((&report["chunks_virtual"], &report["bytes_virtual"]), (&1.into(), &65_536.into()), "{report}");
        archive
    }

    fn directory(&self) -> PathBuf {
        self.place.path().join("data")
    }

    /// Reads the chunk, by a mount and by the reference: one that is refused by both is an error.
    fn read(&self) -> Result<Vec<u8>, String> {
        let mounted = mount(&self.repo, &self.directory());
        let ours = fs::read(mounted.path().join("one/c/0"));
        let theirs = by_reference(&self.repo, &self.directory()).map(|mut keys| keys.remove("one/c/0").unwrap());
        match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => {
                assert_eq!(ours, theirs);
                Ok(ours)
            }
            (Err(ours), Err(theirs)) => Err(format!("{ours}; {theirs}")),
            (ours, theirs) => panic!("{ours:?}, {theirs:?}"),
        }
    }
}

fn write(file: &Path, first: usize) {
    run(python("import_netcdf.py").arg("records").arg(file).args(["8192", "one", &first.to_string()])).success();
}

#[test]
fn a_file_that_is_not_the_same_any_more_is_an_error_and_not_other_numbers() {
    let archive = Archive::new(&["--set-container"]);
    let before = archive.read().unwrap();
    assert_eq!(before[..8], 0_f64.to_be_bytes());
    // At once, in the second of the import.
    let open = File::options().write(true).open(&archive.file).unwrap();
    let last = open.metadata().unwrap().len() - 1;
    open.write_all_at(&[1], last).unwrap();
    assert!(archive.read().is_err(), "changed in place");
    // Another version, of the same length.
    let kept = archive.directory().join("kept");
    fs::rename(&archive.file, &kept).unwrap();
    assert!(archive.read().is_err(), "moved away");
    write(&archive.file, 7);
    assert!(archive.read().is_err(), "another version");
    let time = SystemTime::now() + Duration::from_secs(3600);
    File::options().write(true).open(&archive.file).unwrap().set_modified(time).unwrap();
    let why = import(&archive.file, &archive.repo, &["--virtual"]).failure();
    assert!(why.contains("lies in the future"), "{why}");
}

#[test]
fn nothing_is_referred_to_without_a_container_nor_read_without_permission() {
    let archive = Archive::new(&["--set-container"]);
    let containers = || {
        let all = run_on(&archive.repo, &["config", "get", "virtual_chunk_containers", "--json"]);
        all.json().as_object().unwrap().keys().cloned().collect::<Vec<_>>()
    };
    let prefix = format!("file://{}/", archive.directory().display());
    assert_eq!(containers(), std::slice::from_ref(&prefix));
    let mounted = Mount::new(&archive.repo, &[]);
    let error = fs::read(mounted.path().join("one/c/0")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    drop(mounted);
    // The container is there now, for all directories below it.
    let below = archive.directory().join("below");
    fs::create_dir(&below).unwrap();
    write(&below.join("next.nc"), 0);
    let told = import(&below.join("next.nc"), &archive.repo, &["--path", "next", "--virtual"]).text();
    assert!(told.contains("; 1 virtual, 64 KiB"), "{told}");
    assert!(told.contains(&format!("--allow-virtual '{prefix}below/'")), "{told}");
    assert_eq!(containers(), [prefix]);
    let elsewhere = archive.place.path().join("elsewhere.nc");
    write(&elsewhere, 0);
    let history = || run_on(&archive.repo, &["log", "--json"]).json().as_array().unwrap().len();
    let before = history();
    let why = import(&elsewhere, &archive.repo, &["--path", "other", "--virtual"]).failure();
    assert!(why.contains("no container for file:///") && why.contains("--set-container"), "{why}");
    let tree = archive.place.path().join("tree");
    icechunkfs(["export", archive.repo.to_str().unwrap(), tree.to_str().unwrap(), "--allow-virtual", "/"]).success();
    let why = import(&tree, &archive.repo, &["--virtual", "--set-container"]).failure();
    assert!(why.contains("only chunks of those can be virtual"), "{why}");
    assert_eq!(history(), before);
    // A dry run tells what would be referred to, and adds no container.
    let dry = import(&elsewhere, &archive.repo, &[&ALL[..], &["--path", "other", "--dry-run"]].concat()).text();
    assert!(dry.contains("; 1 virtual"), "{dry}");
    assert_eq!((history(), containers().len()), (before, 1));
}

/// A chunk that is copied takes the place of a reference, and the other way round.
#[test]
fn an_import_without_references_makes_the_archive_its_own() {
    let archive = Archive::new(&["--set-container"]);
    let before = archive.read().unwrap();
    let copied = import(&archive.file, &archive.repo, &["--json"]).json();
    assert_eq!((&copied["chunks_written"], &copied["chunks_virtual"]), (&1.into(), &0.into()), "{copied}");
    fs::remove_dir_all(archive.directory()).unwrap();
    let mounted = Mount::new(&archive.repo, &[]);
    assert_eq!(fs::read(mounted.path().join("one/c/0")).unwrap(), before);
}

#[test]
fn references_follow_an_archive_that_was_moved() {
    let archive = Archive::new(&["--set-container"]);
    let before = archive.read().unwrap();
    let files = || run_on(&archive.repo, &["ls", "--virtual", "--json"]).json();
    let location = |directory: &str| format!("file://{}/{directory}/numbers.nc", archive.place.path().display());
    let row = |directory| serde_json::json!([{"location": location(directory), "chunks": 1, "bytes": 65_536}]);
    assert_eq!(files(), row("data"));
    // To another place, with its time, as rsync and `cp -p` do.
    let new = archive.place.path().join("new");
    fs::create_dir(&new).unwrap();
    let copy = new.join("numbers.nc");
    fs::copy(&archive.file, &copy).unwrap();
    let moved = |options: &[&str]| {
        let from = archive.directory();
        let words = ["rewrite-locations", from.to_str().unwrap(), new.to_str().unwrap()];
        run_on(&archive.repo, &[&words, options].concat())
    };
    let options = ["--set-container", "--json"];
    let why = moved(&options).failure();
    assert!(why.contains("1 file cannot be") && why.contains("numbers.nc: the object has changed"), "{why}");
    assert_eq!(files(), row("data"));
    let time = fs::metadata(&archive.file).unwrap().modified().unwrap();
    File::options().write(true).open(&copy).unwrap().set_modified(time).unwrap();
    let without = moved(&[]).failure();
    assert!(without.contains("no container for") && without.contains("--set-container"), "{without}");
    let dry = moved(&["--set-container", "--dry-run"]).text();
    assert!(dry.contains("would commit to branch main: 1 chunk of 1 file, 64 KiB"), "{dry}");
    assert_eq!(files(), row("data"));
    assert!(moved(&options).json()["snapshot"].is_string());
    assert_eq!(files(), row("new"));
    fs::remove_dir_all(archive.directory()).unwrap();
    assert_eq!(fs::read(mount(&archive.repo, &new).path().join("one/c/0")).unwrap(), before);
    assert_eq!(by_reference(&archive.repo, &new).unwrap()["one/c/0"], before);
    let nothing = moved(&[]).text();
    assert!(nothing.contains("has no chunk in files below"), "{nothing}");
}

/// No reader of the chunk will check it.
#[test]
fn a_chunk_whose_checksum_is_wrong_does_not_become_virtual() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("checked.h5");
    let code = "import sys, h5py, numpy\n\
                made = h5py.File(sys.argv[1], 'w').create_dataset('x', data=numpy.arange(4096.0), chunks=(1024,), fletcher32=True)\n\
                made.file.flush()\n\
                print(made.id.get_chunk_info(1).byte_offset, 'is its place')";
    let offset = compared(python_code(code).arg(&file), "writing");
    let import = |name: &str| import(&file, &place.path().join(name), &ALL);
    assert!(import("right").text().contains("; 4 virtual"));
    File::options().write(true).open(&file).unwrap().write_all_at(&[0x55], offset as u64 + 9).unwrap();
    let why = import("wrong").failure();
    assert!(why.contains("checked.h5: the checksum of a chunk is wrong"), "{why}");
}
