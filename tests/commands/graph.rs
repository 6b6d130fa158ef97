//! The commit graph, drawn on a terminal and as a picture.

use std::path::Path;
use std::process::Command;

use crate::common::lab::{self, create, reopen, set};
use crate::common::{self, FixtureSet, Output, run, run_on};
use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;

/// Creates three commits on `main`, two more on `dev` from the first of them, and a tag.
async fn fork(place: &Path, version: SpecVersionBin) {
    const GROUP: &[u8] = lab::GROUP.as_bytes();
    create(place, version, RepositoryConfig::default()).await;
    let first = set(place, &[("zarr.json", GROUP)], "first").await;
    reopen(place).await.create_branch("dev", &first).await.unwrap();
    reopen(place).await.create_tag("v<1>", &first).await.unwrap();
    set(place, &[("a/zarr.json", GROUP)], "second").await;
    for name in ["x", "y"] {
        let mut session = reopen(place).await.writable_session("dev").await.unwrap();
        let path = format!("/{name}").as_str().try_into().unwrap();
        session.add_group(path, bytes::Bytes::from_static(GROUP)).await.unwrap();
        session.commit(format!("{name} & \"more\" <on> dev\nsecond line")).execute().await.unwrap();
    }
    set(place, &[("b/zarr.json", GROUP)], "третий").await;
}

fn log(place: &Path, locale: &str, words: &[&str]) -> Output {
    run(Command::new(common::program()).arg("log").arg(place).args(words).env("LC_ALL", locale))
}

/// Shortens ids and times in each line.
fn short(output: Output) -> Vec<String> {
    let text = output.text();
    let id = regex::Regex::new("[0-9A-Z]{20} 20[0-9-]{8} [0-9:]{5}").unwrap();
    text.lines().map(|line| id.replace(line, "ID").into_owned()).collect()
}

#[tokio::test]
async fn the_graph_connects_commits_to_their_parents() {
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        fork(place, version).await;
        assert_eq!(
            short(log(place, "C.UTF-8", &["--graph", "--all"])),
            [
                "●  ID (main) третий",
                "●  ID second",
                "│ ●  ID (dev) y & \"more\" <on> dev",
                "│ ●  ID x & \"more\" <on> dev",
                "├─╯",
                "●  ID (tag v<1>) first",
                "○  ID Repository initialized",
            ]
        );
        let ascii = short(log(place, "C", &["--graph", "--branch", "dev", "-n", "2"]));
        assert_eq!(ascii, ["*  ID (dev) y & \"more\" <on> dev", "*  ID x & \"more\" <on> dev"]);
        let colored = log(place, "C", &["--graph", "--color", "always"]).success();
        assert!(colored.starts_with(b"\x1b[31m*\x1b[0m"));
        let plain = log(place, "C", &["--graph"]).success();
        assert!(!plain.contains(&0x1b), "colors without a terminal");

        let all = run_on(place, &["log", "--all", "--json"]).json();
        let of = |message: &str| {
            let all = all.as_array().unwrap();
            all.iter().find(|one| one["message"].as_str().unwrap().starts_with(message)).unwrap()["refs"].clone()
        };
        assert_eq!(all.as_array().unwrap().len(), 6);
        assert_eq!((of("first"), of("третий")), (serde_json::json!(["tag/v<1>"]), serde_json::json!(["branch/main"])));
        let one = run_on(place, &["log", "--json"]).json();
        assert!(one[0].get("refs").is_none());
    }
}

#[tokio::test]
async fn what_a_branch_has_merged_is_in_its_picture() {
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        fork(place, version).await;
        run_on(place, &["merge", "dev", "-m", "merged"]).success();
        let drawn = short(log(place, "C.UTF-8", &["--graph"]));
        assert_eq!(drawn, short(log(place, "C.UTF-8", &["--graph", "--all"])));
        assert!(drawn.iter().any(|line| line.contains("│ ●") && line.contains("x & \"more\" <on> dev")), "{drawn:?}");
        let picture = text_of(&log(place, "C", &["--svg"]).text());
        assert!(picture.contains("x & \"more\" <on> dev"), "{picture}");
        let newest = short(log(place, "C.UTF-8", &["--graph", "-n", "1"]));
        assert_eq!(newest.iter().filter(|line| line.contains("ID")).count(), 1, "{newest:?}");
        // Without the branch, a collection removes its commits.
        run_on(place, &["branch", "delete", "dev", "--yes"]).success();
        run_on(place, &["gc", "--older-than", "0s", "--yes"]).success();
        let drawn = short(log(place, "C.UTF-8", &["--graph"]));
        assert!(!drawn.iter().any(|line| line.contains("on> dev")) && drawn.len() == 5, "{drawn:?}");
    }
}

/// Reads a whole picture as XML; returns its text.
fn text_of(picture: &str) -> String {
    let mut reader = quick_xml::Reader::from_str(picture);
    reader.config_mut().check_end_names = true;
    let mut text = String::new();
    let mut depth = 0;
    loop {
        match reader.read_event().unwrap() {
            quick_xml::events::Event::Start(_) => depth += 1,
            quick_xml::events::Event::End(_) => depth -= 1,
            quick_xml::events::Event::Text(part) => text += &part.decode().unwrap(),
            quick_xml::events::Event::GeneralRef(name) => match name.decode().unwrap().as_ref() {
                "lt" => text.push('<'),
                "gt" => text.push('>'),
                "amp" => text.push('&'),
                "quot" => text.push('"'),
                "#39" => text.push('\''),
                other => panic!("&{other};"),
            },
            quick_xml::events::Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(depth, 0);
    text
}

#[tokio::test]
async fn the_svg_is_xml_with_every_ref_and_message() {
    let place = tempfile::tempdir().unwrap();
    fork(&place.path().join("repo"), SpecVersionBin::V2).await;
    let repo = place.path().join("repo");
    let picture = log(&repo, "C", &["--svg", "--all"]).text();
    let text = text_of(&picture);
    for seen in ["main", "dev", "v<1>", "третий", "x & \"more\" <on> dev", "Repository initialized"] {
        assert!(text.contains(seen), "{seen}: {text}");
    }
    assert_eq!((picture.matches("<circle").count(), picture.matches("<path").count()), (6, 5));
    // Written to a file, the picture replaces it as a whole.
    let file = place.path().join("graph.svg");
    std::fs::write(&file, "old").unwrap();
    log(&repo, "C", &["--svg", "--all", "-o", file.to_str().unwrap()]).success();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), picture);
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 2);
    let empty_storage = place.path().join("none/graph.svg");
    assert!(log(&repo, "C", &["--svg", "-o", empty_storage.to_str().unwrap()]).failure().contains("graph.svg"));
    assert!(log(&repo, "C", &["--svg", "--graph"]).status.code() == Some(2));
}

#[test]
fn log_draws_every_commit_of_every_fixture() {
    for set in FixtureSet::each() {
        for fixture in set.all() {
            let picture = log(&fixture.repository, "C", &["--svg", "--all"]).success();
            text_of(std::str::from_utf8(&picture).unwrap());
            let drawn = log(&fixture.repository, "C.UTF-8", &["--graph", "--all"]).success();
            let snapshots = fixture.expected["snapshots"].as_object().unwrap();
            let drawn = String::from_utf8(drawn).unwrap();
            for id in snapshots.keys() {
                assert_eq!(drawn.matches(id.as_str()).count(), 1, "{}: {id}", fixture.name);
            }
        }
    }
}
