//! `icechunkfs import` of files in a bucket and on web servers: as files of this machine are
//! imported, or refused.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use icechunk::config::{Credentials, S3Credentials, S3StaticCredentials};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use serde_json::Value;

use super::import_virtual::{ALL, reference_with};
use super::netcdf::{python, python_code};
use crate::common::lengths::{length, number};
use crate::common::listener::{Listener, read_head};
use crate::common::moto::{self, BUCKET, SECRET, remove, request, s3};
use crate::common::origin::Origin;
use crate::common::{Files, Mount, Output, assert_same, icechunkfs, read_files, run};

/// Files of each library in the ordinary run, and in a full one.
const QUICK: usize = 8;
const FULL: usize = 100;

/// Returns what the reference reads with the credentials of the bucket.
fn by_reference(repo: &Path) -> Result<Files, String> {
    let credentials = S3StaticCredentials {
        access_key_id: "tester".to_owned(),
        secret_access_key: SECRET.to_owned(),
        session_token: None,
        expires_after: None,
    };
    reference_with(repo, format!("s3://{BUCKET}/data/"), Credentials::S3(S3Credentials::Static(credentials)))
}

/// Copies `file` into the bucket, and returns its URL.
fn upload(port: u16, file: &Path) -> String {
    let name = file.file_name().unwrap().to_str().unwrap();
    let target = format!("/{BUCKET}/data/{name}");
    // The server lets nobody replace an object without a signature.
    remove(port, &target);
    request(port, "PUT", &target, &fs::read(file).unwrap());
    format!("s3://{BUCKET}/data/{name}")
}

fn records(file: &Path, first: usize) {
    let code = "import sys, netCDF4, numpy\n\
                file = netCDF4.Dataset(sys.argv[1], 'w')\n\
                file.createDimension('time', None)\n\
                file.createVariable('time', 'i4', ['time'])[:] = [int(sys.argv[2])]\n\
                made = file.createVariable('x', 'f8', ['time', 'y'] if file.createDimension('y', 4096) else [], zlib=True, chunksizes=[1, 4096])\n\
                made[:] = numpy.random.default_rng(int(sys.argv[2])).random((1, 4096))\n\
                file.createVariable('mask', 'f8', ['y'])[:] = 1\n";
    run(python_code(code).arg(file).arg(first.to_string())).success();
}

#[test]
fn objects_become_what_files_become_copied_and_virtual() {
    let Some(server) = s3() else { return };
    let port = server.port;
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("data");
    fs::create_dir(&directory).unwrap();
    let files = length("ICECHUNKFS_IMPORTS", QUICK, FULL);
    let words = [number("ICECHUNKFS_SEED", 1).to_string(), files.to_string()];
    run(python("import_hdf5.py").arg("make").arg(&directory).args(&words)).success();
    run(python("import_netcdf.py").arg("make").arg(&directory).args(&words)).success();
    let endpoint = format!("s3://{BUCKET}/data,endpoint_url=http://127.0.0.1:{port}");
    let virtual_options = [&ALL[..], &["--virtual-option", &endpoint]].concat();
    let repo = |name: &str| place.path().join(name);
    let mut referred = 0;
    for path in crate::common::entries(&directory) {
        let url = upload(port, &path);
        let group = path.file_name().unwrap().to_str().unwrap().replace('.', "_");
        let mut import = |source: &str, repo: &Path, options: &[&str]| {
            let words = ["import", source, repo.to_str().unwrap(), "--path", &group, "--json"];
            let report = moto::icechunkfs(port, &[&words, options].concat()).json();
            referred += report["chunks_virtual"].as_u64().unwrap();
            report["left_out"].clone()
        };
        let source = path.to_str().unwrap();
        let left_out = import(source, &repo("copied here"), &[]);
        assert_eq!(import(&url, &repo("copied there"), &[]), left_out, "{url}");
        assert_eq!(import(source, &repo("virtual here"), &ALL), left_out, "{url}");
        assert_eq!(import(&url, &repo("virtual there"), &virtual_options), left_out, "{url}");
    }
    assert!(referred > 20 * files as u64, "{referred}");
    let read = |name: &str, allowed: &[&str]| {
        let mount = moto::mount(port, repo(name).to_str().unwrap(), &[&["--read-only"], allowed].concat());
        read_files(&mount.path())
    };
    let copied = read("copied here", &[]);
    assert_same("copied", &read("copied there", &[]), &copied);
    let prefix = format!("s3://{BUCKET}/data");
    // The configuration tells how the store is reached, but for the credentials.
    let allowed = ["--allow-virtual", &prefix, "--virtual-option", &endpoint];
    let there = read("virtual there", &allowed);
    assert_same("virtual", &there, &read("virtual here", &["--allow-virtual", directory.to_str().unwrap()]));
    assert_same("by the reference", &by_reference(&repo("virtual there")).unwrap(), &there);
}

#[test]
fn a_pattern_stands_for_objects_that_are_appended_and_must_stay_as_they_are() {
    let Some(server) = s3() else { return };
    let port = server.port;
    let place = tempfile::tempdir().unwrap();
    let repo = place.path().join("repo");
    let file = |day: usize| place.path().join(format!("day{day}.nc"));
    let add = |day| {
        records(&file(day), day);
        upload(port, &file(day))
    };
    let urls: Vec<String> = (0..3).map(add).collect();
    request(port, "PUT", &format!("/{BUCKET}/data/deeper/day7.nc"), b"no file");
    let pattern = format!("s3://{BUCKET}/data/day*.nc");
    let endpoint = format!("s3://{BUCKET}/data,endpoint_url=http://127.0.0.1:{port}");
    let import = |options: &[&str]| -> Output {
        let words = ["import", &pattern, repo.to_str().unwrap(), "--append-dim", "time", "--virtual"];
        moto::icechunkfs(port, &[&words[..], &["--virtual-option", &endpoint], options].concat())
    };
    let why = import(&[]).failure();
    assert!(why.contains(&format!("no container for s3://{BUCKET}/data/")) && why.contains("--set-container"), "{why}");
    let told = import(&["--set-container"]).text();
    assert!(told.contains("; 3 virtual") && told.contains(&format!("--allow-virtual 's3://{BUCKET}/data/'")), "{told}");
    add(3);
    let next = import(&["--skip-existing", "--json"]).json();
    assert_eq!((&next["chunks_virtual"], &next["skipped"]), (&1.into(), &Value::from(urls.clone())), "{next}");
    let listed = icechunkfs(["ls", repo.to_str().unwrap(), "--virtual"]).text();
    assert_eq!(listed.lines().filter(|line| line.contains(".nc")).count(), 4, "{listed}");
    let cat = |day: usize| {
        let key = format!("x/c/{day}/0");
        let words = ["cat", repo.to_str().unwrap(), &key, "--allow-virtual", &format!("s3://{BUCKET}/data")];
        moto::icechunkfs(port, &[&words[..], &["--virtual-option", &endpoint]].concat())
    };
    let [before, other] = [1, 2].map(|day| cat(day).success());
    assert_eq!(by_reference(&repo).unwrap()["x/c/1/0"], before);
    // Another version of the object, of any time.
    records(&file(1), 100);
    upload(port, &file(1));
    assert!(cat(1).failure().contains("has changed"));
    assert!(by_reference(&repo).is_err());
    assert_eq!(cat(2).success(), other);
    let nothing = moto::icechunkfs(
        port,
        &["import", &format!("s3://{BUCKET}/data/night*.nc"), repo.to_str().unwrap(), "--append-dim", "time"],
    );
    assert!(nothing.failure().contains("no object matches this pattern"));
}

/// An array that is compared with each file that is appended is in the bucket.
#[test]
fn who_names_objects_allows_no_reference_of_the_repository() {
    let Some(server) = s3() else { return };
    let place = tempfile::tempdir().unwrap();
    let repo = place.path().join("repo");
    let endpoint = format!("s3://{BUCKET}/data,endpoint_url=http://127.0.0.1:{}", server.port);
    let import = |source: &str, options: &[&str]| {
        let words = ["import", source, repo.to_str().unwrap(), "--virtual-option", &endpoint];
        moto::icechunkfs(server.port, &[&words[..], options].concat())
    };
    let [first, second] = [0, 1].map(|day| {
        let file = place.path().join(format!("day{day}.nc"));
        records(&file, day);
        upload(server.port, &file)
    });
    let told = import(&first, &ALL).text();
    assert!(told.contains("; 2 virtual"), "{told}");
    let pattern = second.replace("day1", "day[1]");
    let why = import(&pattern, &["--append-dim", "time"]).failure();
    assert!(why.contains("data/day0.nc, at") && why.contains("no such location is allowed"), "{why}");
    let prefix = format!("s3://{BUCKET}/data");
    let told = import(&pattern, &["--append-dim", "time", "--allow-virtual", &prefix]).text();
    assert!(told.contains("0 new groups and arrays, 2 changed"), "{told}");
}

#[test]
fn files_of_a_web_server_are_read_in_parts_and_small_ones_at_once() {
    let place = tempfile::tempdir().unwrap();
    let served = place.path().join("served");
    fs::create_dir(&served).unwrap();
    records(&served.join("small.nc"), 0);
    let code = "import sys, h5py, numpy\n\
                file = h5py.File(sys.argv[1], 'w')\n\
                file.create_dataset('x', data=numpy.random.default_rng(1).random((64, 65536)), chunks=(1, 65536))\n";
    run(python_code(code).arg(served.join("large.h5"))).success();
    let origin = Origin::of(&served);
    let repo = place.path().join("repo");
    let import = |name: &str, options: &[&str]| {
        let url = origin.url(name);
        let words = ["import", &url, repo.to_str().unwrap(), "--path", &name[..5]];
        icechunkfs([&words, options].concat())
    };
    let told = import("small.nc", &["--dry-run"]).text();
    assert!(told.contains("would"), "{told}");
    assert_eq!(origin.take().len(), 1);
    let told = import("large.h5", &["--virtual", "--set-container"]).text();
    assert!(told.contains("; 64 virtual, 32 MiB"), "{told}");
    let requests = origin.take();
    assert!(requests.len() < 12, "{requests:?}");
    let chunk =
        icechunkfs(["cat", repo.to_str().unwrap(), "large/x/c/3/0", "--allow-virtual", &origin.url("")]).success();
    let whole = fs::read(served.join("large.h5")).unwrap();
    assert!(chunk.len() == 8 * 65_536 && whole.windows(chunk.len()).any(|part| part == chunk));
    let copied = import("small.nc", &["--json"]).json();
    assert_eq!(copied["chunks_written"], 3, "{copied}");
    origin.redirect("/small.nc", "http://localhost:1/elsewhere.nc");
    let why = import("small.nc", &[]).failure();
    assert!(why.contains("redirects to http://localhost:1/elsewhere.nc") && why.contains("--allow-virtual"), "{why}");
    let why = import("none.nc", &[]).failure();
    assert!(why.contains("does not have the object"), "{why}");
}

/// Each kind of bucket, at an address of the user.
#[test]
fn files_are_imported_from_every_kind_of_bucket() {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("bucket")).unwrap();
    // Google's client encodes dots, which the server does not decode.
    records(&place.path().join("bucket/x"), 5);
    let origin = Origin::of(place.path());
    let import = |source: &str, repo: &str, options: &[&str]| {
        let words = ["import", source, place.path().join(repo).to_str().unwrap()].map(str::to_owned);
        let mut command = moto::plain(&words);
        run(command.args(options)).success();
        let mounted = Mount::new(&place.path().join(repo), &["--read-only"]);
        read_files(&mounted.path())
    };
    let expected = import(place.path().join("bucket/x").to_str().unwrap(), "here", &[]);
    for (number, prefix) in
        ["s3://bucket", "tigris://bucket", "gs://bucket", "az://bucket", "abfs://bucket@acc.dfs.core.windows.net"]
            .iter()
            .enumerate()
    {
        let options = [format!("endpoint_url={}", origin.url("")), "anonymous".to_owned(), "account=acc".to_owned()];
        let options = options.map(|option| format!("{prefix},{}", option.trim_end_matches('/')));
        let options: Vec<&str> = options.iter().flat_map(|option| ["--virtual-option", option]).collect();
        let found = import(&format!("{prefix}/x"), &format!("there {number}"), &options);
        assert_same(prefix, &found, &expected);
    }
}

/// Returns the time of the first call.
fn started() -> Timestamp {
    static STARTED: OnceLock<Timestamp> = OnceLock::new();
    *STARTED.get_or_init(Timestamp::now)
}

/// Answers a request for a part of the object `bytes`, by the name of what is wrong.
fn lie(mut connection: TcpStream, bytes: &[u8], seen: &AtomicUsize) -> std::io::Result<()> {
    let Some((head, _)) = read_head(&mut connection)? else { return Ok(()) };
    let name = head.split(' ').nth(1).unwrap_or_default().trim_start_matches('/').to_owned();
    let range = head.to_ascii_lowercase();
    let range = range.lines().find_map(|line| line.strip_prefix("range: bytes="));
    let (begin, last) = range.and_then(|range| range.split_once('-')).unwrap();
    let begin: usize = begin.parse().unwrap();
    let end = (last.parse::<usize>().unwrap() + 1).min(bytes.len());
    let number = seen.fetch_add(1, Ordering::Relaxed);
    let total = bytes.len();
    let part = format!("Content-Range: bytes {begin}-{}/{total}\r\n", end - 1);
    let tag = "ETag: \"one\"\r\n";
    let (status, headers, body) = match name.as_str() {
        "whole.h5" => ("200 OK", tag.to_owned(), bytes),
        "unproved.h5" => ("206 Partial Content", part, &bytes[begin..end]),
        "weak.h5" => ("206 Partial Content", format!("{part}ETag: W/\"one\"\r\n"), &bytes[begin..end]),
        "endless.h5" => {
            ("206 Partial Content", format!("Content-Range: bytes {begin}-{}/*\r\n{tag}", end - 1), &bytes[begin..end])
        }
        "changing.h5" => ("206 Partial Content", format!("{part}ETag: \"{number}\"\r\n"), &bytes[begin..end]),
        "older.h5" => {
            let time = if begin > 0 { "Fri, 12 Jul 2024 15:09:59 GMT" } else { "Sat, 13 Jul 2024 15:09:59 GMT" };
            ("206 Partial Content", format!("{part}Last-Modified: {time}\r\n"), &bytes[begin..end])
        }
        "fresh.h5" => {
            let time = DateTimePrinter::new().timestamp_to_rfc9110_string(&started()).unwrap();
            ("206 Partial Content", format!("{part}Last-Modified: {time}\r\n"), &bytes[begin..end])
        }
        "cut.h5" if begin > 0 => ("206 Partial Content", format!("{part}{tag}"), &bytes[begin..begin + 1]),
        "shorter.h5" => {
            let lie = format!("Content-Range: bytes {begin}-{}/{}\r\n{tag}", end - 1, total - 1000);
            ("206 Partial Content", lie, &bytes[begin..end])
        }
        "gone.h5" if begin > 0 => ("404 Not Found", String::new(), &[][..]),
        _ => ("206 Partial Content", format!("{part}{tag}"), &bytes[begin..end]),
    };
    let length = body.len();
    write!(connection, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n")?;
    connection.write_all(body)
}

#[test]
fn a_server_that_lies_gets_nothing_committed() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file.h5");
    // The index of the second variable lies behind the data of the first.
    let code = "import sys, h5py, numpy\n\
                file = h5py.File(sys.argv[1], 'w')\n\
                for name in ['x', 'y']:\n\
                \x20   file.create_dataset(name, data=numpy.random.default_rng(1).random((16, 8192)), chunks=(1, 8192))\n";
    run(python_code(code).arg(&file)).success();
    let bytes = fs::read(&file).unwrap();
    let seen = AtomicUsize::new(0);
    let server = Listener::start("127.0.0.1:0", move |connection| drop(lie(connection, &bytes, &seen)));
    let repo = place.path().join("repo");
    let import = |name: &str, options: &[&str]| {
        let url = format!("http://127.0.0.1:{}/{name}", server.port());
        icechunkfs([&["import", &url, repo.to_str().unwrap()], options].concat())
    };
    for (name, why) in [
        ("whole.h5", "does not send parts of it: download it first"),
        ("unproved.h5", "neither an entity tag nor a time"),
        ("weak.h5", "neither an entity tag nor a time"),
        ("endless.h5", "does not state its length"),
        ("changing.h5", "was changed while it was read"),
        ("cut.h5", "too short"),
        ("older.h5", "was changed while it was read"),
        ("shorter.h5", "not in the file"),
        ("gone.h5", "does not have the object"),
    ] {
        for options in [&[][..], &ALL] {
            let told = import(name, options).failure();
            assert!(told.contains(why) && told.contains(name), "{name}: {told}");
            assert!(!repo.exists(), "{name}: {told}");
        }
    }
    assert_eq!(import("honest.h5", &["--json"]).json()["chunks_written"], 32);
    // A change in the second of its time would have the same time.
    assert_eq!(import("fresh.h5", &["--json", "--path", "fresh"]).json()["chunks_written"], 32);
    assert!(Timestamp::now().as_second() > started().as_second() + 1);
}
