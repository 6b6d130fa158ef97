//! Redirects of the server that has the repository are followed within its origin, and headers do
//! not leave it.

use std::path::Path;
use std::process::Command;

use super::SECRET;
use crate::common::moto::plain;
use crate::common::origin::Origin;
use crate::common::{Mount, Output, project, read_files, run};

fn export(url: &str, to: &Path) -> Command {
    let mut command = plain(&["export", url, to.to_str().unwrap()]);
    command.env("ICECHUNKFS_HEADER", format!("x-secret: {SECRET}")).env("ICECHUNKFS_TIMEOUT", "2");
    command
}

#[test]
fn a_redirect_within_the_origin_is_followed() {
    let server = Origin::of(&project("tests/fixtures/repos"));
    let directory = tempfile::tempdir().unwrap();
    server.redirect("/first/", "/own-v2-basic/{rest}");
    let to = directory.path().join("out");
    run(&mut export(&server.url("first"), &to)).success();
    let local = Mount::new(&project("tests/fixtures/repos").join("own-v2-basic"), &["-o", "ro"]);
    assert!(read_files(&to) == read_files(&local.path()));
    assert!(server.take().iter().all(|seen| seen.headers.contains(SECRET)));
}

#[test]
fn a_redirect_to_another_origin_is_refused() {
    let server = Origin::of(&project("tests/fixtures/repos"));
    let other = Origin::of(&project("tests/fixtures/repos"));
    let directory = tempfile::tempdir().unwrap();
    let port = server.port;
    let targets = [
        other.url("own-v2-basic/{rest}"),
        format!("//127.0.0.1:{}/own-v2-basic/{{rest}}", other.port),
        format!("http://localhost:{port}/own-v2-basic/{{rest}}"),
        format!("http://127.0.0.2:{port}/own-v2-basic/{{rest}}"),
        format!("http://[::1]:{port}/own-v2-basic/{{rest}}"),
        format!("http://[::ffff:127.0.0.1]:{port}/own-v2-basic/{{rest}}"),
        format!("https://127.0.0.1:{port}/own-v2-basic/{{rest}}"),
        format!("http:\\\\127.0.0.1:{}\\own-v2-basic\\{{rest}}", other.port),
        format!("/\\127.0.0.1:{}/own-v2-basic/{{rest}}", other.port),
        format!("http://127.0.0.1:{port}@127.0.0.1:{}/own-v2-basic/{{rest}}", other.port),
        format!("http://%31%32%37.0.0.1:{}/own-v2-basic/{{rest}}", other.port),
        format!("http://127.0.0.1:{port}.nip.io/own-v2-basic/{{rest}}"),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "file:///etc/passwd".to_owned(),
    ];
    for (part, folder) in [("/own-v2-basic/chunks/", "chunks/"), ("/own-v2-basic/", "")] {
        for to in &targets {
            let to = to.replace("{rest}", &format!("{folder}{{rest}}"));
            server.redirect(part, to.clone());
            let place = directory.path().join("out");
            let _ = std::fs::remove_dir_all(&place);
            let output = refused(&server, &place, &to);
            assert!(other.take().is_empty(), "{to} was asked");
            assert!(output.to_lowercase().contains("redirect"), "{to}: {output}");
        }
    }
}

fn refused(server: &Origin, place: &Path, to: &str) -> String {
    let Output { status, stderr, .. } = run(&mut export(&server.url("own-v2-basic"), place));
    assert!(!status.success(), "{to} was followed");
    assert!(!stderr.contains(SECRET), "{stderr}");
    stderr
}

/// Another spelling of the same origin is the same origin.
#[test]
fn a_redirect_to_another_spelling_of_the_origin_is_followed() {
    let server = Origin::of(&project("tests/fixtures/repos"));
    let directory = tempfile::tempdir().unwrap();
    let port = server.port;
    for (n, host) in ["127.0.0.1", "2130706433", "0x7f.1", "127.1", "127.0.0.1."].iter().enumerate() {
        server.redirect("/first/", format!("HTTP://{host}:{port}/own-v2-basic/{{rest}}"));
        run(&mut export(&server.url("first"), &directory.path().join(n.to_string()))).success();
    }
}

#[test]
fn a_redirect_loop_ends() {
    let server = Origin::of(&project("tests/fixtures/repos"));
    let directory = tempfile::tempdir().unwrap();
    server.redirect("/own-v2-basic/", "/own-v2-basic/{rest}");
    refused(&server, &directory.path().join("out"), "itself");
    assert!(server.take().len() < 200);
}

/// A redirect of a bucket's address is not followed either.
#[test]
fn a_redirect_of_a_store_to_another_host_is_refused() {
    let other = Origin::of(&project("tests/fixtures/repos"));
    for (place, variable) in [
        ("s3://bucket/x", "AWS_ENDPOINT_URL"),
        ("gs://bucket/x", "ICECHUNKFS_ENDPOINT_URL"),
        ("az://bucket/x", "ICECHUNKFS_ENDPOINT_URL"),
    ] {
        let store = Origin::listener();
        store.redirect("/", other.url("{rest}"));
        let mut command = plain(&["refs", place]);
        command.env(variable, store.url("").trim_end_matches('/')).env("ICECHUNKFS_TIMEOUT", "2");
        command.env("ICECHUNKFS_HEADER", format!("x-secret: {SECRET}")).env("AZURE_STORAGE_ACCOUNT_NAME", "acc");
        command.env("AWS_ACCESS_KEY_ID", "me").env("AWS_SECRET_ACCESS_KEY", SECRET).env("AWS_SESSION_TOKEN", SECRET);
        command.env("AWS_REGION", "us-east-1").env("AZURE_STORAGE_ACCOUNT_KEY", "bm9ib2R5");
        if place.starts_with("gs") {
            command.env("ICECHUNKFS_ANONYMOUS", "1");
        }
        run(&mut command).failure();
        assert!(!store.take().is_empty(), "{place}");
        assert!(other.take().is_empty(), "{place}");
    }
}

/// The server that gives credentials is another origin.
#[test]
fn headers_are_not_sent_to_credential_servers() {
    let store = Origin::listener();
    let metadata = Origin::listener();
    let mut command = plain(&["refs", "s3://bucket/x"]);
    command.env("AWS_ENDPOINT_URL", store.url("").trim_end_matches('/')).env("ICECHUNKFS_TIMEOUT", "2");
    command.env("AWS_METADATA_ENDPOINT", metadata.url("").trim_end_matches('/'));
    command.env("ICECHUNKFS_HEADER", format!("x-secret: {SECRET}")).env("AWS_REGION", "us-east-1");
    run(&mut command).failure();
    let asked = metadata.take();
    assert!(!asked.is_empty() && asked.iter().all(|seen| !seen.headers.contains(SECRET)), "{asked:?}");
    command.env("AWS_ACCESS_KEY_ID", "me").env("AWS_SECRET_ACCESS_KEY", SECRET);
    run(&mut command).failure();
    let asked = store.take();
    assert!(
        !asked.is_empty() && asked.iter().all(|seen| seen.headers.contains(&format!("x-secret: {SECRET}"))),
        "{asked:?}"
    );
}
