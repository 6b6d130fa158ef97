//! Comparison of an object with the checksum of its reference.

use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::printable;
use icechunkfs_format::format::chunk_payload::Checksum;

/// State of an object, as reported by its store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ObjectState {
    pub(super) e_tag: Option<String>,
    /// Time of the last change, in seconds since 1970-01-01 UTC.
    pub(super) last_modified: Option<i64>,
}

impl ObjectState {
    /// Returns the checksum of a reference to the object in this state; none if nothing tells
    /// states apart. A weak entity tag does not: objects with other bytes may have it.
    pub(super) fn proof(&self) -> Option<Checksum> {
        match &self.e_tag {
            Some(tag) if !tag.trim().starts_with("W/") && !strip_tag(tag).is_empty() => {
                Some(Checksum::Etag(tag.trim().to_owned()))
            }
            _ => self.last_modified.and_then(|time| u32::try_from(time).ok()).map(Checksum::LastModified),
        }
    }

    /// Fails with [`icechunkfs_base::error::ErrorKind::Corrupt`] if `checksum` is for another
    /// state, or if the state is unknown.
    pub(super) fn check(&self, checksum: &Checksum) -> Result<()> {
        let unknown = |what: &str| {
            Error::corrupt(format!(
                "the reference has {what} to check the object by, but the server does not send one: to read its bytes \
                 unchecked, pass --virtual-option 'PREFIX,unchecked'"
            ))
        };
        match checksum {
            Checksum::Etag(expected) => {
                let now = self.e_tag.as_deref().ok_or_else(|| unknown("an entity tag"))?;
                if strip_tag(now) != strip_tag(expected) {
                    let now = printable::line(strip_tag(now));
                    let expected = printable::line(strip_tag(expected));
                    return Err(changed(&format!("its entity tag was {expected} and is {now}")));
                }
            }
            Checksum::LastModified(latest) => {
                let now = self.last_modified.ok_or_else(|| unknown("a time"))?;
                if now > i64::from(*latest) {
                    let words = |seconds| {
                        jiff::Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |at| at.to_string())
                    };
                    return Err(changed(&format!(
                        "its time is {}, and must not be later than {}",
                        words(now),
                        words((*latest).into())
                    )));
                }
            }
        }
        Ok(())
    }
}

fn changed(how: &str) -> Error {
    Error::corrupt(format!("the object has changed since the reference to it was made: {how}"))
}

/// Removes the quotes and the weakness prefix of an entity tag.
fn strip_tag(tag: &str) -> &str {
    let tag = tag.trim();
    tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tags_are_compared_without_quotes_and_times_by_the_second() {
        let state = ObjectState { e_tag: Some("\"abc\"".into()), last_modified: Some(100) };
        for checksum in [
            Checksum::Etag("abc".into()),
            Checksum::Etag("\"abc\"".into()),
            Checksum::Etag("W/\"abc\"".into()),
            Checksum::LastModified(100),
            Checksum::LastModified(u32::MAX),
        ] {
            state.check(&checksum).unwrap();
        }
        assert!(state.check(&Checksum::Etag(String::new())).is_err());
    }

    #[test]
    fn only_what_tells_states_apart_is_a_proof() {
        let proof = |e_tag: &str, last_modified| ObjectState { e_tag: Some(e_tag.into()), last_modified }.proof();
        assert_eq!(proof("\"abc\"", Some(100)), Some(Checksum::Etag("\"abc\"".into())));
        assert_eq!(proof("W/\"abc\"", Some(100)), Some(Checksum::LastModified(100)));
        assert_eq!(proof("\"\"", Some(100)), Some(Checksum::LastModified(100)));
        assert_eq!([proof("W/\"abc\"", None), proof("", Some(-1))], [None, None]);
    }
}
