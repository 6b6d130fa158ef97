//! Check of `zarr.json` before a commit: refuses documents that would fail later, or that other
//! clients would read differently.

use icechunkfs_base::error::{Error, Result};
use icechunkfs_format::format::json;
use icechunkfs_format::zarr::array::{ArrayMetadata, ArraySummary};
use icechunkfs_format::zarr::document;
use icechunkfs_format::zarr::members::{shorten, string};

/// Longest `zarr.json`, in bytes: a snapshot holds all of them, and is bounded itself.
pub const MAX_DOCUMENT: u64 = 256 << 20;

/// Kind of node that a document declares.
#[derive(Clone, Debug, PartialEq)]
pub enum Document {
    /// A group.
    Group,
    /// An array.
    Array(Box<ArrayMetadata>),
}

impl Document {
    /// Parses and checks a document. The error is worded for the document's author.
    pub fn check(bytes: &[u8]) -> Result<Self> {
        if bytes.is_empty() {
            return Err(Error::invalid("it is empty: wait for its writer, or write it again"));
        }
        // Strict, like the reference implementation: Python writes NaN and Infinity as bare words,
        // which are not JSON.
        json::check(bytes).map_err(|e| {
            let text = String::from_utf8_lossy(bytes);
            let hint = if text.contains("NaN") || text.contains("Infinity") {
                "; attributes may not hold NaN or Infinity: write them as strings"
            } else {
                ""
            };
            Error::invalid(format!("it is not JSON ({e}){hint}"))
        })?;
        let members = document::members(bytes).unwrap_or_default();
        match members.get("zarr_format") {
            Some("3") => {}
            Some(format) => {
                let format = shorten(format);
                return Err(Error::invalid(format!("its zarr_format is {format}, and Icechunk only has 3")));
            }
            None => return Err(Error::invalid("it has no zarr_format")),
        }
        match members.get("node_type").and_then(string).as_deref() {
            Some("group") => Ok(Document::Group),
            Some("array") => {
                // Its dimension names become part of the snapshot.
                ArraySummary::parse(bytes)?;
                Ok(Document::Array(Box::new(ArrayMetadata::parse(bytes)?)))
            }
            Some(other) => {
                let other = shorten(other);
                Err(Error::invalid(format!("its node_type is `{other}`: it must be `group` or `array`")))
            }
            None => Err(Error::invalid("it has no node_type")),
        }
    }

    /// Returns true if the document declares an array.
    pub fn is_array(&self) -> bool {
        matches!(self, Document::Array(_))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn documents_that_the_reference_refuses_are_refused() {
        let array = |rest: &str| {
            format!(
                r#"{{"zarr_format":3,"node_type":"array","shape":[4],"data_type":"int8",
                "chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":[2]}}}}{rest}}}"#
            )
        };
        assert_eq!(Document::check(br#"{"zarr_format":3,"node_type":"group"}"#).unwrap(), Document::Group);
        assert!(Document::check(array("").as_bytes()).unwrap().is_array());
        assert!(Document::check(array(r#","dimension_names":["x"]"#).as_bytes()).is_ok());
        let wrong = [
            String::new(),
            "{".into(),
            "\u{feff}{}".into(),
            r#"{"zarr_format":2,"node_type":"group"}"#.into(),
            r#"{"zarr_format":3,"node_type":"table"}"#.into(),
            r#"{"zarr_format":3,"node_type":"group","attributes":{"a":NaN}}"#.into(),
            array(r#","dimension_names":["x","y"]"#),
            array(r#","dimension_names":[1]"#),
            r#"{"zarr_format":3,"node_type":"array","shape":[4]}"#.into(),
        ];
        for text in wrong {
            assert!(Document::check(text.as_bytes()).is_err(), "{text}");
        }
    }
}
