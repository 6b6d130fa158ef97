//! Checks that `docs/architecture.md` names existing functions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::Path;

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
