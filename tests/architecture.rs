//! Checks that `docs/architecture.md` names existing functions, and that each promise in the
//! documents names tests that exist.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Returns the words in backquotes of a document, each with the text between it and the one before.
fn quoted(document: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = document.split('`').collect();
    parts.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
}

#[test]
fn functions_named_in_architecture_md_exist_in_their_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    // Drawings have no backquotes in them, except three before and after.
    let document = document.replace("```", "");
    let words = quoted(&document);
    let is_file = |word: &str| (word.starts_with("src/") || word.starts_with("crates/")) && word.ends_with(".rs");
    let mut found = 0;
    let mut wrong = Vec::new();
    let mut look = |file: &str, needles: [String; 2]| match std::fs::read_to_string(root.join(file)) {
        Err(error) => wrong.push(format!("{file}: {error}")),
        Ok(text) if needles.iter().any(|needle| text.contains(needle.as_str())) => found += 1,
        Ok(_) => wrong.push(format!("{file} has no {}", needles[0])),
    };
    for ((_, word), (between, next)) in std::iter::zip(&words, words.iter().skip(1)) {
        if is_file(word) {
            if between.trim().is_empty() || between.trim() == "and" && !is_file(next) {
                look(word, [format!("fn {next}("), format!("fn {next}<")]);
            } else {
                look(word, [String::new(), String::new()]);
            }
        }
        if is_file(next) && between.trim() == "of" {
            look(next, [format!("{word}: "), format!("fn {word}(")]);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(found > 40, "{found}");
}

/// Adds the files below `directory` whose names end with `ending`.
fn files(directory: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, ending, found);
        } else if path.to_str().is_some_and(|path| path.ends_with(ending)) {
            found.push(path);
        }
    }
}

/// Returns the links of a document that lead into the project.
fn links(document: &str) -> impl Iterator<Item = &str> {
    let links = document.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    links.filter(|link| !link.contains("://"))
}

/// Returns all documents that have links.
fn documents(root: &Path) -> Vec<PathBuf> {
    let mut documents = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    files(&root.join("docs"), ".md", &mut documents);
    documents
}

#[test]
fn what_documents_lead_to_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = 0;
    let mut wrong = Vec::new();
    for document in documents(root) {
        let text = std::fs::read_to_string(&document).unwrap();
        let paths = links(&text).map(|link| link.split('#').next().unwrap());
        let mut places: Vec<PathBuf> = paths.map(|link| document.parent().unwrap().join(link)).collect();
        let is_guide = ["CONTRIBUTING.md", "where.md", "tests.md"].iter().any(|name| document.ends_with(name));
        let is_place = |word: &str| {
            let folders = ["src/", "crates/", "tests/", "docs/", "scripts/", "python/"];
            is_guide && folders.iter().any(|folder| word.starts_with(folder)) && !word.contains([' ', '*', '{'])
        };
        let text = text.replace("```", "");
        let words = quoted(&text).into_iter().map(|(_, word)| word).filter(|word| is_place(word));
        places.extend(words.map(|word| root.join(word)));
        found += places.len();
        wrong.extend(places.into_iter().filter(|place| !place.exists()).map(|place| (document.clone(), place)));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(found > 150, "{found}");
}

/// Returns the anchors of the headings of a document, as they are made for links.
fn anchors(document: &str) -> HashSet<String> {
    let mut is_code = false;
    let mut found = HashSet::new();
    for line in document.lines() {
        is_code ^= line.starts_with("```");
        if let Some(heading) = line.strip_prefix('#').filter(|_| !is_code) {
            let heading = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
            let anchor: String = heading.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect();
            let again = (1..).map(|number| format!("{anchor}-{number}"));
            let free = std::iter::once(anchor.clone()).chain(again).find(|name| !found.contains(name));
            found.extend(free);
        }
    }
    found
}

#[test]
fn anchors_that_documents_lead_to_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    let mut wrong = Vec::new();
    for document in documents(root) {
        let text = std::fs::read_to_string(&document).unwrap();
        for (path, anchor) in links(&text).filter_map(|link| link.split_once('#')) {
            let target = if path.is_empty() { document.clone() } else { document.parent().unwrap().join(path) };
            count += 1;
            if !std::fs::read_to_string(&target).is_ok_and(|text| anchors(&text).contains(anchor)) {
                wrong.push(format!("{}: {path}#{anchor}", document.strip_prefix(root).unwrap().display()));
            }
        }
    }
    assert!(wrong.is_empty(), "no such heading: {wrong:#?}");
    assert!(count > 20, "{count}");
}

/// Returns the names in brackets of a document that are no links: `[`one::test`, `another`]`.
fn named_tests(document: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for (at, _) in document.match_indices("[`") {
        let Some((list, after)) = document[at + 1..].split_once(']') else { continue };
        let words = list.split(',').map(|word| word.trim().strip_prefix('`')?.strip_suffix('`'));
        let is_name = |word: &str| word.chars().all(|c| c.is_ascii_alphanumeric() || "_:".contains(c));
        match words.collect::<Option<Vec<&str>>>() {
            Some(words) if !after.starts_with('(') && words.iter().all(|word| is_name(word)) => names.extend(words),
            _ => {}
        }
    }
    names
}

#[test]
fn tests_named_in_documents_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = Vec::new();
    for folder in ["tests", "crates", "src"] {
        files(&root.join(folder), ".rs", &mut sources);
    }
    // Functions, and the files and folders that a promise can name as a whole.
    let mut known: HashSet<String> = HashSet::new();
    for path in &sources {
        let parts = path.strip_prefix(root).unwrap().iter().map(|part| part.to_str().unwrap());
        known.extend(parts.map(|part| part.trim_end_matches(".rs").to_owned()));
        let text = std::fs::read_to_string(path).unwrap();
        let end = |rest: &str| rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        known.extend(text.split("fn ").skip(1).map(|rest| rest[..end(rest)].to_owned()));
    }
    let mut found = 0;
    let mut wrong = Vec::new();
    for path in documents(root) {
        let text = std::fs::read_to_string(&path).unwrap();
        for name in named_tests(&text) {
            found += 1;
            if !known.contains(name.rsplit("::").next().unwrap()) {
                wrong.push(format!("{}: {name}", path.strip_prefix(root).unwrap().display()));
            }
        }
    }
    assert!(wrong.is_empty(), "no such test: {}", wrong.join(", "));
    assert!(found > 300, "{found}");
}
