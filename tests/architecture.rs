//! Checks that the source matches its documents: floors use only those below them, and `docs/architecture.md` names
//! existing functions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Returns the row of each module in the table, counted from the top.
fn floors(lib: &str) -> BTreeMap<String, usize> {
    let rows = lib.lines().filter_map(|line| line.strip_prefix("// | [`")?.split(" |").next());
    let names = |row: &str| {
        row.split("[`").map(|name| name.trim_start_matches("mod@").split('`').next().unwrap().to_owned()).collect()
    };
    rows.map(names)
        .enumerate()
        .flat_map(|(floor, names): (_, Vec<String>)| names.into_iter().map(move |name| (name, floor)))
        .collect()
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Returns the modules that a line of code names after `crate::`, in braces or not.
fn used(line: &str) -> Vec<&str> {
    let end = |text: &str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let names = line.split("crate::").skip(1).flat_map(move |rest| match rest.strip_prefix('{') {
        Some(list) => list.split(',').map(|name| name.trim()).map(|name| &name[..end(name)]).collect(),
        None => vec![&rest[..end(rest)]],
    });
    names.filter(|name| !name.is_empty()).collect()
}

#[test]
fn each_floor_uses_only_those_below_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let lib = std::fs::read_to_string(root.join("lib.rs")).unwrap();
    let floors = floors(&lib);
    let modules: Vec<&str> = lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    assert!(modules.len() > 20);
    let missing: Vec<_> = modules.iter().filter(|name| !floors.contains_key(**name)).collect();
    assert!(missing.is_empty(), "not in the table of src/lib.rs: {missing:?}");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let (mut wrong, mut looked_at) = (Vec::new(), 0);
    for path in files {
        let below = path.strip_prefix(&root).unwrap();
        let module = below.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        let Some(own) = floors.get(module) else { continue };
        let text = std::fs::read_to_string(&path).unwrap();
        // Tests may use any floor, and names in documentation are for readers.
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for (number, line) in code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            for name in used(line) {
                looked_at += 1;
                if floors.get(name).is_some_and(|floor| floor < own) {
                    wrong.push(format!(
                        "src/{}:{}: {module} uses {name}, a floor above it",
                        below.display(),
                        number + 1
                    ));
                }
            }
        }
    }
    assert!(looked_at > 1000, "{looked_at}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

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
    let is_file = |word: &str| word.starts_with("src/") && word.ends_with(".rs");
    let (mut found, mut wrong) = (0, Vec::new());
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

#[test]
fn every_form_of_import_is_recognized() {
    assert_eq!(used("use crate::error::{Error, Result};"), ["error"]);
    assert_eq!(used("use crate::{printable, shell::quoted};"), ["printable", "shell"]);
    assert_eq!(used("fn f(x: crate::tree::Tree) -> crate::repo::Repository"), ["tree", "repo"]);
    assert!(used("use super::tree;").is_empty());
}
