//! No text of a repository decides which host gets the credentials of the environment.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use icechunk::config::{ObjectStoreConfig, S3Options};
use icechunk::format::format_constants::SpecVersionBin;

use super::SECRET;
use crate::common::lab::array_json;
use crate::common::made::{container, of_version, reference, repository};
use crate::common::moto::plain;
use crate::common::origin::{Origin, Seen};
use crate::common::{icechunkfs, run};

/// Runs `icechunkfs cat` of the first chunk, with all the credentials that an environment can have.
/// `proxy` records every request to another machine by its host.
fn cat(repository: &Path, proxy: &Origin, words: &[&str]) -> Command {
    let mut command = plain(&[&["cat", repository.to_str().unwrap(), "v/c/0"], words].concat());
    command.env("HTTPS_PROXY", proxy.url("")).env("HTTP_PROXY", proxy.url("")).env("ICECHUNKFS_TIMEOUT", "1");
    command.env("NO_PROXY", "127.0.0.1,localhost");
    command.env("AWS_ACCESS_KEY_ID", "me").env("AWS_SECRET_ACCESS_KEY", SECRET).env("AWS_SESSION_TOKEN", SECRET);
    command.env("AZURE_STORAGE_ACCOUNT_KEY", "bm9ib2R5LW1heS1zZWUtdGhpcw==").env("AZURE_STORAGE_SAS_TOKEN", SECRET);
    command
}

/// The same with a token that is exchanged for keys at a host that the region names.
fn with_web_identity(mut command: Command, token: &Path) -> Command {
    std::fs::write(token, SECRET).unwrap();
    command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY").env_remove("AWS_SESSION_TOKEN");
    command.env("AWS_WEB_IDENTITY_TOKEN_FILE", token).env("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/x");
    command
}

/// Returns requests to hosts that are not the provider's.
fn other_hosts(asked: &[Seen], domain: &str) -> Vec<Seen> {
    let is_known = |seen: &Seen| seen.first.starts_with("CONNECT ") && seen.first.contains(&format!("{domain}:443 "));
    asked.iter().filter(|seen| !is_known(seen)).cloned().collect()
}

fn hostile_words(port: u16) -> Vec<String> {
    let host = format!("127.0.0.1:{port}");
    let forms = [
        "us-east-1@{}/",
        "{}/",
        "x@{}#",
        "x@{}?",
        "{}/x/",
        "x:y@{}/",
        "..{}/",
        "evil.example/",
        "evil.example#",
        "evil.example\\",
        "EVIL.EXAMPLE%2F",
        "evil.example.",
        "e\u{3002}example/",
        "a b",
        "us-east-1\n",
        "\u{ff0f}x",
        "",
    ];
    forms.map(|form| form.replace("{}", &host)).into()
}

#[test]
fn a_region_of_the_configuration_chooses_no_host() {
    let listener = Origin::listener();
    let proxy = Origin::listener();
    let directory = tempfile::tempdir().unwrap();
    for (n, region) in hostile_words(listener.port).iter().enumerate().filter(|(_, region)| !region.is_empty()) {
        for (kind, store) in
            [("s3", ObjectStoreConfig::S3 as fn(S3Options) -> _), ("compatible", ObjectStoreConfig::S3Compatible)]
        {
            let store = store(S3Options::default().with_region(region.clone()));
            let place = directory.path().join(format!("{kind}{n}"));
            let repository =
                repository(&place, vec![container("c", "s3://bucket/", store)], &[reference("s3://bucket/x", 0, 1)]);
            let words = ["--allow-virtual", "s3://bucket"];
            let token = directory.path().join("token");
            for mut command in
                [cat(&repository, &proxy, &words), with_web_identity(cat(&repository, &proxy, &words), &token)]
            {
                let output = run(&mut command).failure();
                assert!(listener.take().is_empty(), "{region:?} was asked");
                let asked = proxy.take();
                assert!(other_hosts(&asked, ".amazonaws.com").is_empty(), "{region:?}: {asked:?}");
                assert!(output.contains("region") && output.contains("--virtual-option"), "{region:?}: {output}");
                assert!(!output.contains('@') || !output.contains(SECRET), "{output}");
            }
        }
    }
}

/// The user's region overrides the configuration, and Amazon gets the request.
#[test]
fn a_region_of_the_user_overrides_the_configuration() {
    let proxy = Origin::listener();
    let directory = tempfile::tempdir().unwrap();
    let store = ObjectStoreConfig::S3(S3Options::default().with_region("x@evil.example/".to_owned()));
    let containers = vec![container("c", "s3://bucket/", store)];
    let repository = repository(&directory.path().join("repo"), containers, &[reference("s3://bucket/x", 0, 1)]);
    let words = ["--allow-virtual", "s3://bucket", "--virtual-option", "s3://bucket,region=eu-west-1"];
    run(&mut cat(&repository, &proxy, &words)).failure();
    let asked = proxy.take();
    let is_amazon = |seen: &Seen| seen.first.contains("s3.eu-west-1.amazonaws.com:443");
    assert!(!asked.is_empty() && asked.iter().all(is_amazon), "{asked:?}");
}

/// Version 1 stores its configuration in `config.yaml`.
#[test]
fn a_region_of_a_version_1_configuration_chooses_no_host() {
    let listener = Origin::listener();
    let proxy = Origin::listener();
    let directory = tempfile::tempdir().unwrap();
    let good = ObjectStoreConfig::S3(S3Options::default().with_region("THE-REGION".to_owned()));
    let repository = of_version(
        SpecVersionBin::V1,
        &directory.path().join("repo"),
        vec![container("c", "s3://bucket/", good)],
        &[reference("s3://bucket/x", 0, 1)],
        (1, array_json(&[1], &[1], "")),
    );
    let stored = std::fs::read_to_string(repository.join("config.yaml")).unwrap();
    assert!(stored.contains("THE-REGION"), "{stored}");
    for region in hostile_words(listener.port).iter().filter(|region| !region.is_empty()) {
        // JSON is YAML.
        let changed = stored.replace("THE-REGION", &serde_json::to_string(region).unwrap());
        std::fs::write(repository.join("config.yaml"), changed).unwrap();
        let output = run(&mut cat(&repository, &proxy, &["--allow-virtual", "s3://bucket"])).failure();
        assert!(output.contains("region"), "{region:?}: {output}");
        assert!(listener.take().is_empty(), "{region:?} was asked");
        assert!(other_hosts(&proxy.take(), ".amazonaws.com").is_empty(), "{region:?}");
    }
}

#[test]
fn an_account_of_the_configuration_chooses_no_host() {
    let listener = Origin::listener();
    let proxy = Origin::listener();
    let directory = tempfile::tempdir().unwrap();
    let mut words = hostile_words(listener.port);
    words.extend(["ab", "UPPER", "has-dash", "waytoolongforanaccountnameatazure"].map(str::to_owned));
    for (n, account) in words.iter().enumerate().filter(|(_, account)| !account.is_empty()) {
        for key in ["account", "azure_storage_account_name"] {
            let store = ObjectStoreConfig::Azure(HashMap::from([(key.to_owned(), account.clone())]));
            let place = directory.path().join(format!("{key}{n}"));
            let repository =
                repository(&place, vec![container("c", "az://bucket/", store)], &[reference("az://bucket/x", 0, 1)]);
            let output = run(&mut cat(&repository, &proxy, &["--allow-virtual", "az://bucket"])).failure();
            assert!(listener.take().is_empty(), "{account:?} was asked");
            assert!(other_hosts(&proxy.take(), ".blob.core.windows.net").is_empty(), "{account:?}");
            assert!(output.contains("account"), "{account:?}: {output}");
        }
    }
}

/// The account is valid, but only the repository names it.
#[test]
fn an_account_that_only_the_repository_names_gets_no_credentials() {
    let store = Origin::listener();
    let proxy = Origin::listener();
    let directory = tempfile::tempdir().unwrap();
    let config = HashMap::from([("account".to_owned(), "stranger".to_owned())]);
    let containers = vec![container("c", "az://bucket/", ObjectStoreConfig::Azure(config))];
    let repository = repository(&directory.path().join("repo"), containers, &[reference("az://bucket/x", 0, 1)]);
    // The user's own store is at the variable's address: a request of another account shows there
    // too.
    let cat = |words: &[&str], account: Option<&str>| {
        let mut command = cat(&repository, &proxy, &[&["--allow-virtual", "az://bucket"], words].concat());
        command
            .env("AZURE_STORAGE_ENDPOINT", store.url("").trim_end_matches('/'))
            .env_remove("AZURE_STORAGE_SAS_TOKEN");
        account.map(|account| command.env("AZURE_STORAGE_ACCOUNT_NAME", account));
        run(&mut command).failure();
    };
    for account in [None, Some("mine")] {
        cat(&[], account);
        let asked = store.take();
        assert!(asked.is_empty(), "{asked:?}");
        let asked = proxy.take();
        assert!(
            !asked.is_empty() && asked.iter().all(|seen| seen.first.contains("stranger.blob.core.windows.net")),
            "{asked:?}"
        );
    }
    // It is the user's account: a flag or the environment names it.
    for (words, account) in [(&["--virtual-option", "az://bucket,account=stranger"][..], None), (&[], Some("stranger"))]
    {
        cat(words, account);
        let asked = store.take();
        assert!(
            !asked.is_empty() && asked.iter().all(|seen| seen.headers.contains("authorization: sharedkey stranger:")),
            "{asked:?}"
        );
    }
}

#[test]
fn config_set_refuses_invalid_regions_and_accounts() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("repo");
    let repo = place.to_str().unwrap();
    icechunkfs(["init", repo]).success();
    let set = |key: &str, value: &str| icechunkfs(["config", repo, "set", key, value]);
    let s3 = r#"{"url_prefix": "s3://bucket/", "store": {"s3": {"region": "REGION"}}}"#;
    let azure = r#"{"url_prefix": "az://bucket/", "store": {"azure": {"account": "ACCOUNT"}}}"#;
    for word in hostile_words(1).iter().filter(|word| !word.is_empty()) {
        let escaped = serde_json::to_string(word).unwrap();
        let escaped = escaped.trim_matches('"');
        let output = set("virtual_chunk_containers.c", &s3.replace("REGION", escaped)).failure();
        assert!(output.contains("region"), "{word:?}: {output}");
        let output = set("virtual_chunk_containers.c", &azure.replace("ACCOUNT", escaped)).failure();
        assert!(output.contains("account"), "{word:?}: {output}");
    }
    set("virtual_chunk_containers.c", &s3.replace("REGION", "eu-west-1")).success();
    assert!(set("virtual_chunk_containers.c.store.s3.region", "evil.example/").failure().contains("region"));
    for endpoint in [
        "http://u:p@store.example",
        "ftp://store.example",
        "store.example",
        "https://store.example/?x",
        "https://store.example#",
    ] {
        let output = set("virtual_chunk_containers.c.store.s3.endpoint_url", endpoint).failure();
        assert!(output.contains("endpoint_url") && !output.contains("u:p"), "{endpoint}: {output}");
    }
    for bucket in ["s3://buc%2Fket/", "s3://a@b/", "s3://b:80/", "az://UP%2F/"] {
        let kind = if bucket.starts_with("s3") { r#"{"s3": {}}"# } else { r#"{"azure": {}}"# };
        set("virtual_chunk_containers.d", &format!(r#"{{"url_prefix": "{bucket}", "store": {kind}}}"#)).failure();
    }
}

/// Arguments of the command line are checked by the same rule.
#[test]
fn regions_accounts_and_buckets_of_the_user_are_validated() {
    let proxy = Origin::listener();
    let run = |words: &[&str]| {
        let mut command = plain(words);
        command.env("HTTPS_PROXY", proxy.url("")).env("ICECHUNKFS_TIMEOUT", "1");
        command
            .env("AWS_ACCESS_KEY_ID", "me")
            .env("AWS_SECRET_ACCESS_KEY", SECRET)
            .env("AZURE_STORAGE_ACCOUNT_KEY", "bm9ib2R5");
        run(&mut command).failure()
    };
    for word in hostile_words(1).iter().filter(|word| !word.is_empty()) {
        assert!(run(&["refs", "s3://bucket/x", "--region", word]).contains("region"), "{word}");
        assert!(run(&["refs", "az://bucket/x", "--account", word]).contains("account"), "{word}");
    }
    for place in [
        "s3://b#x/y",
        "s3://b?x/y",
        "s3://b\\x/y",
        "s3://b:80/y",
        "s3://.b/y",
        "s3://b%2f/y",
        "gs://b:80/y",
        "az://B C/y",
        "abfs://c@evil.example/x",
        "abfs://c@acc.blob.core.windows.net.evil.example/x",
        "abfs://c@acc.evil.dfs.core.windows.net/x",
        "abfs://c@a-b.dfs.core.windows.net/x",
        "abfs://c@acc.dfs.core.windows.net:80/x",
    ] {
        run(&["refs", place]);
    }
    assert!(proxy.take().is_empty());
    run(&["refs", "s3://bucket/x", "--region", "eu-west-1"]);
    run(&["refs", "abfs://c@acc.dfs.core.windows.net/x"]);
    // No region is given: Amazon is asked for it.
    run(&["refs", "s3://bucket/x"]);
    let asked = proxy.take();
    assert!(asked.iter().any(|seen| seen.first.contains("s3.eu-west-1.amazonaws.com:443")), "{asked:?}");
    assert!(asked.iter().any(|seen| seen.first.contains(" s3.amazonaws.com:443 ")), "{asked:?}");
    assert!(asked.iter().any(|seen| seen.first.contains("acc.blob.core.windows.net:443")), "{asked:?}");
}
