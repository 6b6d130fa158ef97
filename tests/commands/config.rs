//! The stored configuration: the reference reads our settings, we show its settings, and values
//! that it could not open are never written.
use std::path::Path;

use crate::common::lab::{create, reopen};
use crate::common::writing::{Reference as Keys, Writable, array};
use crate::common::{self, Output, run_on};
use icechunk::config::{
    CompressionConfig, ManifestConfig, ManifestPreloadCondition, ManifestPreloadConfig, ManifestSplittingConfig,
    ObjectStoreConfig, S3Options,
};
use icechunk::format::format_constants::SpecVersionBin;
use icechunk::virtual_chunks::VirtualChunkContainer;
use icechunk::{Repository as Reference, RepositoryConfig};
use icechunkfs::format::config_edit::{self, schema::ValueKind};
use icechunkfs::format::repo_info::RepoInfo;
use icechunkfs::format::repo_state::{Operation, RepoState};
use icechunkfs::repo::Repository;
use icechunkfs::storage;
use icechunkfs::times::system_clock;
use serde_json::{Map, Value, json};

const BOTH: [SpecVersionBin; 2] = [SpecVersionBin::V1, SpecVersionBin::V2];

fn config(place: &Path, words: &[&str]) -> Output {
    run_on(place, &[&["config"], words].concat())
}

/// Returns the configuration as the reference reads it when it opens the repository again.
async fn reference_config(place: &Path) -> Option<Value> {
    let storage = icechunk::new_local_filesystem_storage(place).await.unwrap();
    let found = Reference::fetch_config(storage).await.unwrap();
    // The repository opens, too.
    reopen(place).await;
    found.map(|(config, _)| serde_json::to_value(config).unwrap())
}

/// A repository holds equal commits of many nodes. The better they are compressed, the smaller
/// their files are.
#[test]
fn commits_obey_the_compression_level() {
    for version in BOTH {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("repo");
        common::block_on(create(&place, version, RepositoryConfig::default()));
        let mount = Writable::of(&place, &[]);
        for n in 0..300 {
            std::fs::create_dir(mount.root().join(format!("a{n}"))).unwrap();
            std::fs::write(mount.root().join(format!("a{n}/zarr.json")), array(&[n + 1, 7 * n + 1], &[1, 1])).unwrap();
        }
        mount.commit("many").unwrap();
        let mut sizes = Vec::new();
        for level in ["1", "22", "3"] {
            config(&place, &["set", "compression.level", level]).success();
            std::fs::write(mount.root().join("a0/c/0/0"), level)
                .or_else(|_| {
                    std::fs::create_dir_all(mount.root().join("a0/c/0"))?;
                    std::fs::write(mount.root().join("a0/c/0/0"), level)
                })
                .unwrap();
            mount.commit(level).unwrap();
            let newest = run_on(&place, &["log", "--json", "-n", "1"]).json()[0]["id"].as_str().unwrap().to_owned();
            sizes.push(std::fs::metadata(place.join("snapshots").join(newest)).unwrap().len());
        }
        // Ids are random, and so are the last bytes of a size.
        let clearly_smaller = |other: u64| sizes[1] * 20 < other * 19;
        assert!(clearly_smaller(sizes[0]) && clearly_smaller(sizes[2]), "{sizes:?}");
        assert_eq!(Keys::open(&place).keys().get("a0/c/0/0").unwrap(), b"3");
    }
}

/// Checks that every setting of `ours` is in `theirs`, which has nothing else but defaults.
fn same(ours: &Value, theirs: &Value, at: &str) {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            for (name, value) in ours.iter().filter(|(_, value)| !value.is_null()) {
                same(value, &theirs[name], &format!("{at}.{name}"));
            }
            for (name, value) in theirs.iter().filter(|(name, _)| ours.get(*name).is_none_or(Value::is_null)) {
                assert!(value.is_null() || *value == json!(false), "{at}.{name}: {value}");
            }
        }
        (Value::Array(ours), Value::Array(theirs)) => {
            assert_eq!(ours.len(), theirs.len(), "{at}");
            ours.iter().zip(theirs).for_each(|(ours, theirs)| same(ours, theirs, at));
        }
        _ => assert_eq!(ours, theirs, "{at}"),
    }
}

async fn agree(place: &Path) -> Value {
    let ours = config(place, &["get", "--json"]).json();
    same(&ours, &reference_config(place).await.unwrap_or_else(|| json!({})), "");
    ours
}

/// Returns a valid value for a setting of `kind`.
fn sample(kind: &ValueKind) -> Value {
    match kind {
        ValueKind::Whole { max, .. } => json!(max),
        ValueKind::Bool => json!(true),
        ValueKind::Text | ValueKind::Pattern => json!("true"),
        ValueKind::Checked(rule) => {
            let samples = ["us-east-1", "account", "https://store.example"];
            json!(samples.into_iter().find(|text| (rule.is_valid)(text)).unwrap())
        }
        ValueKind::Struct(members) | ValueKind::Open(members, _) => {
            members.iter().map(|member| (member.name.to_owned(), sample(member.kind))).collect::<Map<_, _>>().into()
        }
        ValueKind::Map(_) => json!({}),
        ValueKind::List(below) => match below {
            // Conditions may be nested.
            ValueKind::Choice(_) => json!([]),
            below => json!([sample(below)]),
        },
        ValueKind::Pair(first, second) => json!([sample(first), sample(second)]),
        ValueKind::Choice(variants) => match variants.first().unwrap() {
            (name, None) => json!(name),
            (name, Some(payload)) => json!({*name: sample(payload)}),
        },
    }
}

/// Returns every variant of every choice below `kind`, each in a value of `kind`.
fn variants(kind: &ValueKind, deep: usize) -> Vec<Value> {
    if deep == 0 {
        return vec![sample(kind)];
    }
    match kind {
        ValueKind::Choice(all) => all
            .iter()
            .flat_map(|(name, payload)| match payload {
                None => vec![json!(name)],
                Some(payload) => {
                    variants(payload, deep - 1).into_iter().map(|payload| json!({*name: payload})).collect()
                }
            })
            .collect(),
        ValueKind::List(below) => vec![variants(below, deep - 1).into()],
        ValueKind::Pair(first, second) => {
            let second = sample(second);
            variants(first, deep - 1).into_iter().map(|first| json!([first, second])).collect()
        }
        ValueKind::Struct(members) | ValueKind::Open(members, _) => members
            .iter()
            .flat_map(|member| {
                let whole = sample(kind);
                variants(member.kind, deep - 1).into_iter().map(move |value| {
                    let mut whole = whole.clone();
                    whole[member.name] = value;
                    whole
                })
            })
            .collect(),
        kind => vec![sample(kind)],
    }
}

#[tokio::test]
async fn the_reference_reads_every_setting_as_it_was_set() {
    for version in BOTH {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        create(place, version, RepositoryConfig::default()).await;
        assert_eq!(reference_config(place).await, None);
        let ours = Repository::open(storage::open_directory(place).unwrap()).await.unwrap();
        let set = async |key: &str, value: &Value| {
            let text = value.to_string();
            let change =
                |stored: &icechunkfs::format::config::RepoConfig| config_edit::set(stored.members(), key, &text);
            ours.change_config(system_clock, change).await.unwrap_or_else(|error| panic!("{key} {text}: {error}"));
        };
        let mut count = 0;
        for setting in config_edit::all(&Map::new()) {
            for value in variants(setting.kind.unwrap(), 6) {
                set(&setting.key, &value).await;
                count += 1;
            }
        }
        agree(place).await;
        assert!(count > 50, "{count}");
        // Each condition is tested by itself, since only the last of each setting remained.
        for key in ["manifest.preload.preload_if", "manifest.splitting.split_sizes"] {
            let place = config_edit::key::SettingPath::find(&Map::new(), key).unwrap();
            for value in variants(place.kind.unwrap(), 6) {
                set(key, &value).await;
                let read = reference_config(ours.storage().local_path().unwrap().as_path()).await.unwrap();
                let parts: Vec<&str> = key.split('.').collect();
                same(&value, &read[parts[0]][parts[1]][parts[2]], key);
            }
        }
        for (name, prefix, store) in [
            ("s3", "s3://b.c/d/", json!({"s3": {"region": "eu", "network_stream_timeout_seconds": 9}})),
            ("minio", "s3://c/", json!({"s3_compatible": {"endpoint_url": "http://x", "checksum_algorithm": "sha1"}})),
            ("t", "tigris://c/", json!({"tigris": {}})),
            ("gs", "gs://c/", json!({"gcs": {"google_skip_signature": "true"}})),
            ("az", "az://c/x/", json!({"azure": {"account": "acc"}})),
            ("web", "https://c/", json!({"http": {"timeout": "5s", "headers": {"x-a": "b"}}})),
            ("here", "file:///a/b/", json!({"local_file_system": "/a/b"})),
        ] {
            set(&format!("virtual_chunk_containers.{name}"), &json!({"url_prefix": prefix, "store": store})).await;
        }
        let all = agree(place).await;
        let containers = all["virtual_chunk_containers"].as_object().unwrap();
        assert_eq!(containers.len(), 7);
        let reference = reopen(place).await;
        let config = reference.config();
        for (prefix, container) in containers {
            let theirs = config.get_virtual_chunk_container(prefix).unwrap();
            assert_eq!(theirs.name(), container["name"].as_str());
            // The reference would have accepted this value.
            VirtualChunkContainer::new(prefix.clone(), theirs.store.clone()).unwrap();
        }
    }
}

#[tokio::test]
async fn settings_saved_by_the_reference_are_shown_and_changed_in_place() {
    for version in BOTH {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let mut saved = RepositoryConfig {
            inline_chunk_threshold_bytes: Some(12),
            compression: Some(CompressionConfig { algorithm: None, level: Some(7) }),
            manifest: Some(ManifestConfig {
                preload: Some(ManifestPreloadConfig {
                    max_total_refs: Some(5),
                    preload_if: Some(ManifestPreloadCondition::NumRefs {
                        from: std::ops::Bound::Unbounded,
                        to: std::ops::Bound::Excluded(3),
                    }),
                    max_arrays_to_scan: None,
                }),
                splitting: Some(ManifestSplittingConfig::with_size(9)),
                ..Default::default()
            }),
            ..Default::default()
        };
        let store = ObjectStoreConfig::S3(S3Options::default().with_region("us-east-1"));
        let container = VirtualChunkContainer::new_named("ocean".into(), "s3://my.bucket/x/".into(), store).unwrap();
        saved.set_virtual_chunk_container(container).unwrap();
        create(place, version, saved.clone()).await.save_config().await.unwrap();
        let ours = agree(place).await;
        assert_eq!(ours["manifest"]["preload"]["preload_if"]["num_refs"]["to"], json!({"Excluded": 3}));
        let text = |words: &[&str]| config(place, words).text();
        assert_eq!(text(&["get", "inline_chunk_threshold_bytes"]), "12\n");
        assert_eq!(text(&["get", "virtual_chunk_containers.ocean.store.s3.region"]), "us-east-1\n");
        assert_eq!(text(&["get", "virtual_chunk_containers.s3://my.bucket/x/.name"]), "ocean\n");
        let listed = text(&["get"]);
        assert!(listed.contains("compression.level = 7\n") && !listed.contains("caching"), "{listed}");
        let all = text(&["get", "--all"]);
        let row = |name: &str| {
            all.lines().find(|line| line.starts_with(name)).unwrap().split_whitespace().collect::<Vec<_>>()
        };
        assert_eq!(row("SETTING"), ["SETTING", "VALUE", "DEFAULT"]);
        assert_eq!(row("caching.num_chunk_refs"), ["caching.num_chunk_refs", "-", "15000000"]);
        assert_eq!(row("compression.level")[..2], ["compression.level", "7"]);
        let unset = config(place, &["get", "max_concurrent_requests"]).failure();
        assert!(unset.contains("is not set; the default is: 256"), "{unset}");
        assert_eq!(config(place, &["get", "max_concurrent_requests", "--json"]).json(), Value::Null);

        // One setting is changed; the reference finds all others unchanged.
        let mut expected = reference_config(place).await.unwrap();
        assert_eq!(text(&["set", "compression.level", "4"]), "compression.level = 4; it was 7\n");
        expected["compression"]["level"] = json!(4);
        assert_eq!(reference_config(place).await.unwrap(), expected);
        let moved = config(place, &["set", "virtual_chunk_containers.ocean.url_prefix", "s3://sea/", "--json"]).json();
        assert_eq!(moved["key"], "virtual_chunk_containers.s3://sea/.url_prefix");
        assert_eq!(text(&["unset", "manifest.splitting"]).lines().count(), 1);
        assert_eq!(text(&["unset", "manifest.splitting"]), "manifest.splitting is not set\n");
        assert_eq!(text(&["set", "compression.level", "4"]), "compression.level = 4 already\n");
        let reference = reopen(place).await;
        assert_eq!(reference.config().virtual_chunk_containers().next().unwrap().url_prefix(), "s3://sea/");
        assert_eq!(reference.config().manifest().splitting, None);
        reference.save_config().await.unwrap();
        agree(place).await;
    }
}

#[tokio::test]
async fn settings_that_the_reference_could_not_open_are_refused() {
    for version in BOTH {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        create(place, version, RepositoryConfig::default()).await;
        config(place, &["set", "inline_chunk_threshold_bytes", "100"]).success();
        let before = common::read_files(place);
        for (key, value, why) in [
            ("inline_chunk_threshold_bytes", "-5", "0 to 65535"),
            ("inline_chunk_threshold_byte", "5", "did you mean `inline_chunk_threshold_bytes`"),
            ("compression.algorithm", "gzip", "one of `zstd`"),
            ("virtual_chunk_containers.a.store", "in_memory", "no container `a`"),
            ("manifest.preload.preload_if", "always", "one of"),
            ("storage.concurrency.max_concurrent_requests_for_object", "0", "1 to 65535"),
        ] {
            let refused = config(place, &["set", key, value]);
            assert_eq!(refused.status.code(), Some(2), "{key}");
            assert!(refused.stderr.contains(why), "{key}: {}", refused.stderr);
        }
        let careless = config(place, &["unset", "nothing.of.it"]).failure();
        assert!(careless.contains("there is no setting"), "{careless}");
        assert!(common::read_files(place) == before, "nothing was written");
        let risky = config(place, &["set", "storage.unsafe_use_conditional_update", "false"]);
        assert!(risky.stderr.contains("lose commits if two of them write"), "{}", risky.stderr);
        // The value is read from standard input.
        let mut command = std::process::Command::new(common::program());
        command.arg("config").arg(place).args(["set", "manifest.splitting", "-"]);
        let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
        use std::io::Write;
        child.stdin.take().unwrap().write_all(b"{\"split_sizes\": []}\n").unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(agree(place).await["manifest"], json!({"splitting": {"split_sizes": []}}));
    }
}

/// Replaces the configuration in `repo` by any bytes.
fn put_config(place: &Path, config: &Value) {
    let info = RepoInfo::decode(&std::fs::read(place.join("repo")).unwrap()).unwrap();
    let mut state = RepoState::from_info(&info).unwrap();
    state.config = Some(flexbuffers::to_vec(config).unwrap());
    std::fs::write(place.join("repo"), state.encode().unwrap()).unwrap();
}

#[tokio::test]
async fn members_stored_by_newer_programs_are_kept() {
    let future =
        json!({"plan": {"kind": "gold", "steps": [1, {"a": null}, "x"]}, "size": 7.5, "compression": {"level": 3}});
    for version in BOTH {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        create(place, version, RepositoryConfig::default()).await;
        let yaml = b"plan: !gold\n  steps: !all [1, !one 2]\nsize: 7.5\ncompression:\n  level: 3\n";
        match version {
            SpecVersionBin::V1 => std::fs::write(place.join("config.yaml"), yaml).unwrap(),
            _ => put_config(place, &future),
        }
        config(place, &["set", "compression.level", "5"]).success();
        config(place, &["set", "caching.num_chunk_refs", "5"]).success();
        let found = config(place, &["get", "--json"]).json();
        assert_eq!((&found["size"], &found["compression"]["level"]), (&json!(7.5), &json!(5)));
        if version == SpecVersionBin::V1 {
            let text = std::fs::read_to_string(place.join("config.yaml")).unwrap();
            assert!(text.contains("plan: !gold") && text.contains("steps: !all") && text.contains("!one 2"), "{text}");
            let copies = std::fs::read_dir(place.join("overwritten")).unwrap().count();
            assert_eq!(copies, 2, "each change leaves a copy of what was there");
        } else {
            assert_eq!(found["plan"], future["plan"]);
        }
        assert!(config(place, &["set", "plan", "1"]).failure().contains("newer program"));
        config(place, &["unset", "plan"]).success();
        assert!(config(place, &["get", "--json"]).json().get("plan").is_none());
        assert_eq!(reopen(place).await.config().compression().level(), 5);
    }
}

#[tokio::test]
async fn a_configuration_exists_only_once_something_is_set() {
    for version in BOTH {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        create(place, version, RepositoryConfig::default()).await;
        let text = |words: &[&str]| config(place, words).text();
        assert!(text(&["get"]).contains("nothing is set"));
        assert_eq!(config(place, &["get", "--json"]).json(), json!({}));
        text(&["unset", "compression.level"]);
        assert_eq!(reference_config(place).await, None);
        text(&["set", "compression.level", "5"]);
        assert_eq!(reference_config(place).await.unwrap()["compression"]["level"], 5);
        text(&["unset", "compression.level"]);
        reopen(place).await;
        assert_eq!(config(place, &["get", "--json"]).json(), json!({}));
        if version == SpecVersionBin::V2 {
            assert_eq!(reference_config(place).await, None);
            let info = RepoInfo::decode(&std::fs::read(place.join("repo")).unwrap()).unwrap();
            let updates = RepoState::from_info(&info).unwrap().updates;
            let changes = updates.iter().filter(|update| update.operation == Operation::ConfigChanged).count();
            assert_eq!(changes, 2, "{updates:?}");
        }
    }
}

#[test]
fn concurrent_changes_of_the_configuration_are_all_kept() {
    let keys = [
        "inline_chunk_threshold_bytes",
        "max_concurrent_requests",
        "compression.level",
        "caching.num_chunk_refs",
        "storage.retries.max_tries",
        "manifest.preload.max_total_refs",
        "storage.timeouts.read_timeout_ms",
        "num_updates_per_repo_info_file",
    ];
    for version in BOTH {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(create(place, version, RepositoryConfig::default()));
        std::thread::scope(|scope| {
            for key in keys {
                let runtime = &runtime;
                scope.spawn(move || {
                    for n in 1..=4 {
                        runtime.block_on(async {
                            let ours = Repository::open(storage::open_directory(place).unwrap()).await.unwrap();
                            let change = |stored: &icechunkfs::format::config::RepoConfig| {
                                config_edit::set(stored.members(), key, &(n * 5).to_string())
                            };
                            assert!(ours.change_config(system_clock, change).await.unwrap().is_some());
                        });
                    }
                });
            }
        });
        for key in keys {
            assert_eq!(config(place, &["get", key]).success(), b"20\n", "{key}");
        }
        runtime.block_on(agree(place));
    }
}
