//! Buckets: the configuration of a store, and the destinations of credentials.

use icechunk::config::{ObjectStoreConfig, S3Options};

use super::web::{TAG, Web, content};
use crate::common::made::{container, reference, repository};
use crate::common::moto::{BUCKET, SECRET, plain, request, s3};
use crate::common::run;

fn options(endpoint: Option<&str>, allow_http: bool) -> S3Options {
    let mut options =
        S3Options::default().with_region("us-east-1").with_allow_http(allow_http).with_force_path_style(true);
    if let Some(endpoint) = endpoint {
        options = options.with_endpoint_url(endpoint);
    }
    options
}

/// A server of any protocol records its requests. Every object has the same bytes.
#[test]
fn credentials_go_to_no_server_that_only_the_repository_names() {
    let web = Web::new("http://169.254.169.254/latest");
    let directory = tempfile::tempdir().unwrap();
    let endpoint = format!("http://127.0.0.1:{}", web.port);
    let store = ObjectStoreConfig::S3Compatible(options(Some(&endpoint), true));
    let repository = repository(
        &directory.path().join("repo"),
        vec![container("c", "s3://bucket/", store)],
        &[reference("vcc://c/deep/x", 3, 30), reference("s3://bucket/sent-away", 0, 1)],
    );
    let cat = |n: usize, words: &[&str]| {
        let key = format!("v/c/{n}");
        let mut command = plain(&[&["cat", repository.to_str().unwrap(), &key], words].concat());
        run(command
            .env("AWS_ACCESS_KEY_ID", "tester")
            .env("AWS_SECRET_ACCESS_KEY", SECRET)
            .env("AWS_SESSION_TOKEN", "hidden"))
    };
    let output = cat(0, &[]).failure();
    assert!(output.contains("--allow-virtual 's3://bucket/'") && output.contains(&endpoint), "{output}");
    assert!(web.take().is_empty(), "the server got a request without permission");
    let allowed = ["--allow-virtual", "s3://bucket"];
    assert_eq!(cat(0, &allowed).success(), content(3, 30));
    let asked = web.take();
    assert_eq!(asked[0].target, "/bucket/deep/x");
    assert!(!asked[0].headers.contains("authorization") && !asked[0].headers.contains("hidden"), "{asked:?}");
    let confirmed = format!("s3://bucket,endpoint_url={endpoint}");
    assert_eq!(cat(0, &[&allowed[..], &["--virtual-option", &confirmed]].concat()).success(), content(3, 30));
    assert!(web.take()[0].headers.contains("authorization"));
    let mut command = plain(&["cat", repository.to_str().unwrap(), "v/c/0", allowed[0], allowed[1]]);
    command.args(["--virtual-option", "s3://bucket,access_key_id=k"]).env("AWS_SESSION_TOKEN", "hidden");
    command.env("ICECHUNKFS_VIRTUAL_OPTION", "s3://bucket,secret_access_key=s");
    assert_eq!(run(&mut command).success(), content(3, 30));
    let signed = web.take();
    assert!(signed[0].headers.contains("credential=k/") && !signed[0].headers.contains("hidden"), "{signed:?}");
    // A redirect of a store is not followed.
    let output = cat(1, &[&allowed[..], &["--timeout", "2"]].concat()).failure();
    assert!(output.contains("s3://bucket/sent-away"), "{output}");
    assert!(web.take().iter().all(|request| request.target == "/bucket/sent-away"));
}

/// Every kind of bucket, at an address of the user.
#[test]
fn virtual_chunks_are_read_from_every_kind_of_bucket() {
    let web = Web::new("");
    let directory = tempfile::tempdir().unwrap();
    let prefixes =
        ["s3://bucket", "tigris://bucket", "gs://bucket", "az://bucket", "abfs://bucket@acc.dfs.core.windows.net"];
    let references = prefixes.map(|prefix| reference(format!("{prefix}/a%20b/x.nc"), 11, 40).tagged(TAG));
    let repository = repository(&directory.path().join("repo"), Vec::new(), &references);
    for (n, prefix) in prefixes.iter().enumerate() {
        let key = format!("v/c/{n}");
        let options = [
            format!("{prefix},endpoint_url=http://127.0.0.1:{}", web.port),
            format!("{prefix},anonymous"),
            format!("{prefix},account=acc"),
            format!("{prefix},timeout=5"),
        ];
        let options = options.iter().flat_map(|option| ["--virtual-option", option]);
        let words: Vec<&str> =
            ["cat", repository.to_str().unwrap(), &key, "--allow-virtual", prefix].into_iter().chain(options).collect();
        assert_eq!(run(&mut plain(&words)).success(), content(11, 40), "{prefix}");
        let asked = web.take();
        // Google's client percent-encodes more letters.
        let target = asked[0].target.replace("%2F", "/").replace("%2E", ".");
        assert!(asked.len() == 1 && target.starts_with("/bucket/a%20b/x.nc"), "{prefix}: {asked:?}");
        // The options may be in the environment too, one a line.
        let mut command = plain(&words[..3]);
        command.env("ICECHUNKFS_ALLOW_VIRTUAL", format!("/nowhere\n{prefix}"));
        let options: Vec<&str> = words[5..].iter().copied().filter(|word| *word != "--virtual-option").collect();
        command.env("ICECHUNKFS_VIRTUAL_OPTION", options.join("\n"));
        assert_eq!(run(&mut command).success(), content(11, 40), "{prefix}");
        web.take();
    }
}

#[test]
fn an_unencrypted_endpoint_is_refused_unless_allowed() {
    let web = Web::new("");
    let directory = tempfile::tempdir().unwrap();
    let endpoint = format!("http://127.0.0.1:{}", web.port);
    let store = ObjectStoreConfig::S3Compatible(options(Some(&endpoint), false));
    let containers = vec![container("c", "s3://bucket/", store)];
    let repository = repository(&directory.path().join("repo"), containers, &[reference("s3://bucket/x", 0, 5)]);
    let words = ["cat", repository.to_str().unwrap(), "v/c/0", "--allow-virtual", "s3://bucket"];
    let output = run(&mut plain(&words)).failure();
    assert!(output.contains("unencrypted") && web.take().is_empty(), "{output}");
}

/// Over a real server: its answers identify the state of an object, and a mismatch is reported.
#[test]
fn reading_a_changed_object_is_an_error() {
    let Some(server) = s3() else { return };
    let bytes = content(0, 10_000);
    request(server.port, "PUT", &format!("/{BUCKET}/data/x"), &bytes);
    let at = |key: &str| format!("s3://{BUCKET}/{key}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as u32;
    // The server's tag is the MD5 of the bytes.
    let tag = "\"not that one\"";
    let directory = tempfile::tempdir().unwrap();
    let repository = repository(
        &directory.path().join("repo"),
        vec![container("c", &at("data/"), ObjectStoreConfig::S3(options(None, false)))],
        &[
            reference(at("data/x"), 100, 50),
            reference("vcc://c/x", 100, 50).not_after(now + 100),
            reference(at("data/x"), 100, 50).not_after(now - 10_000),
            reference(at("data/x"), 100, 50).tagged(tag),
            reference(at("data/nothing"), 0, 1),
            reference(at("data/x"), 9_990, 50),
            reference(at("data/x"), 10_000, 50),
            reference(at("other/x"), 0, 1),
            reference("s3://icechunkfs-no-such-bucket/x", 0, 1),
        ],
    );
    let cat = |n: usize| {
        let key = format!("v/c/{n}");
        let repository = repository.to_str().unwrap();
        let words = [
            "cat",
            repository,
            &key,
            "--allow-virtual",
            &at("data"),
            "--allow-virtual",
            "s3://icechunkfs-no-such-bucket",
        ];
        crate::common::moto::icechunkfs(server.port, &words)
    };
    for n in [0, 1] {
        assert_eq!(cat(n).success(), bytes[100..150], "{n}");
    }
    for (n, message) in [
        (2, "has changed"),
        (3, "has changed"),
        (4, "is gone"),
        (5, "too short"),
        (6, "too short"),
        (7, "no such location is allowed"),
        (8, "bucket does not exist"),
    ] {
        let output = cat(n).failure();
        assert!(output.contains(message), "{n}: {output}");
    }
}
