//! Names that become part of a store's address: regions, accounts and buckets, each validated by
//! its provider's rule.
//!
//! They come from untrusted configurations, references, flags, variables and profiles. An invalid
//! name is rejected when it is parsed, so that no text can put another host into a URL.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// Longest region, in bytes. Amazon's longest has 20.
const MAX_REGION: usize = 64;
/// Longest bucket of Amazon S3, in bytes: the limit for those created before 2018.
const MAX_S3_BUCKET: usize = 255;
/// Longest bucket of Google Cloud Storage, in bytes: with dots, each part has at most 63.
const MAX_GCS_BUCKET: usize = 222;
/// Longest container of Azure, in bytes.
const MAX_CONTAINER: usize = 63;
/// Containers of Azure that are exempt from the rule.
const SPECIAL_CONTAINERS: [&str; 3] = ["$root", "$web", "$logs"];

/// Rule for regions, for messages.
pub const REGION_RULE: &str = "a region: letters a-z, digits and `-`, such as us-east-1";
/// Rule for accounts, for messages.
pub const ACCOUNT_RULE: &str = "a storage account: 3 to 24 letters a-z and digits";

/// Defines a name that is valid if `$is_valid` accepts it; `$rule` is for messages.
macro_rules! define_name {
    ($(#[$doc:meta])* $name:ident, $rule:ident, $is_valid:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name(String);

        impl $name {
            /// Returns the name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                let wrong = || Error::invalid(format!("`{text}` is not {}", $rule));
                Some(text).filter(|text| $is_valid(text)).map(|text| $name(text.to_owned())).ok_or_else(wrong)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

define_name!(
    /// A region of Amazon S3 or of a compatible store.
    Region, REGION_RULE, is_region
);
define_name!(
    /// A storage account of Azure.
    Account, ACCOUNT_RULE, is_account
);

fn is_region(text: &str) -> bool {
    let is_plain = |byte: u8| is_lower(byte) || byte == b'-';
    // A label of a host neither begins nor ends with a hyphen.
    let has_ends = !text.is_empty() && !text.starts_with('-') && !text.ends_with('-');
    has_ends && text.len() <= MAX_REGION && text.bytes().all(is_plain)
}

fn is_account(text: &str) -> bool {
    (3..=24).contains(&text.len()) && text.bytes().all(is_lower)
}

/// Provider whose rule for bucket names applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// Amazon S3, and compatible stores.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage, whose buckets are containers.
    Azure,
}

impl Provider {
    /// Returns true if `name` is valid for a bucket.
    pub fn is_bucket(self, name: &str) -> bool {
        let is_end = |byte: u8| byte.is_ascii_alphanumeric();
        let ends = name.bytes().next().is_some_and(is_end) && name.bytes().last().is_some_and(is_end);
        let (longest, is_plain): (usize, fn(u8) -> bool) = match self {
            Provider::S3 => (MAX_S3_BUCKET, |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')),
            Provider::Gcs => (MAX_GCS_BUCKET, |byte| is_lower(byte) || matches!(byte, b'-' | b'_' | b'.')),
            Provider::Azure if SPECIAL_CONTAINERS.contains(&name) => return true,
            Provider::Azure => (MAX_CONTAINER, |byte| is_lower(byte) || byte == b'-'),
        };
        ends && name.len() <= longest && name.bytes().all(is_plain) && !name.contains("..")
    }
}

fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_labels() {
        for name in ["us-east-1", "eu", "auto", "us-gov-west-1", "1"] {
            assert!(name.parse::<Region>().is_ok(), "{name}");
        }
        let odd = ".@/#?\\:%é \n".chars().map(|c| format!("a{c}b"));
        for name in odd.chain(["", "-", "a-", "-a", "US-EAST-1", &"a".repeat(65)].map(str::to_owned)) {
            assert!(name.parse::<Region>().is_err(), "{name:?}");
        }
    }

    #[test]
    fn accounts_and_buckets_are_by_the_providers_rules() {
        for (name, fits) in
            [("abc", true), ("a1b2", true), ("ab", false), ("Abc", false), ("a-b", false), ("a.b", false)]
        {
            assert_eq!(name.parse::<Account>().is_ok(), fits, "{name}");
        }
        assert!("a".repeat(25).parse::<Account>().is_err());
        for (provider, name, fits) in [
            (Provider::S3, "Old_bucket.2016", true),
            (Provider::S3, "a..b", false),
            (Provider::S3, ".a", false),
            (Provider::S3, "a.", false),
            (Provider::S3, "a%2fb", false),
            (Provider::Gcs, "a_b.example", true),
            (Provider::Gcs, "Ab", false),
            (Provider::Azure, "$web", true),
            (Provider::Azure, "$x", false),
            (Provider::Azure, "a-b", true),
            (Provider::Azure, "a.b", false),
            (Provider::Azure, "", false),
        ] {
            assert_eq!(provider.is_bucket(name), fits, "{provider:?} {name}");
        }
    }
}
