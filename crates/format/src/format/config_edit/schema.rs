//! Describes the settings of a repository's configuration: the reference implementation's types,
//! with its names (format notes 1.4).

use serde_json::Value;

use icechunkfs_base::endpoint::Endpoint;
use icechunkfs_base::store_names::{self, Account, Region};

/// ValueKind of a setting's value.
#[derive(Debug)]
pub enum ValueKind {
    /// Integer within bounds, both inclusive.
    Whole {
        /// Smallest value.
        min: i64,
        /// Largest value.
        max: u64,
    },
    /// True or false.
    Bool,
    /// Any text.
    Text,
    /// Text that becomes part of an address and must follow a rule.
    Checked(&'static Rule),
    /// Regular expression.
    Pattern,
    /// Map with the given members.
    Struct(&'static [Member]),
    /// Map with the given members, and values of one kind under other names.
    Open(&'static [Member], &'static ValueKind),
    /// Map with values of one kind under any names.
    Map(&'static ValueKind),
    /// List of values of one kind.
    List(&'static ValueKind),
    /// List of two values.
    Pair(&'static ValueKind, &'static ValueKind),
    /// One of several variants: its name or, if it has a payload, a map from its name to the
    /// payload.
    Choice(&'static [Variant]),
}

/// Rule for a text. Errors do not repeat the text, because it may contain a password.
#[derive(Debug)]
pub struct Rule {
    /// Description of a valid text.
    pub describe: &'static str,
    /// Predicate for a valid text.
    pub is_valid: fn(&str) -> bool,
}

/// Name of a variant, and the kind of its payload.
pub type Variant = (&'static str, Option<&'static ValueKind>);

/// Member of a map.
#[derive(Debug)]
pub struct Member {
    /// Name of the member.
    pub name: &'static str,
    /// ValueKind of the member's value.
    pub kind: &'static ValueKind,
    /// Rule for a missing or null value.
    pub presence: Presence,
    /// Default, in words; empty if there is none.
    pub default: &'static str,
}

/// Rule for a missing or null member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The member may be missing or null.
    Optional,
    /// The member may be missing, but not null.
    NotNull,
    /// The member must be present.
    Required,
    /// Readers require the member; if a user leaves it out, false is written.
    Filled,
}

impl ValueKind {
    /// Returns the members with known names.
    pub fn members(&self) -> &'static [Member] {
        match self {
            ValueKind::Struct(members) | ValueKind::Open(members, _) => members,
            _ => &[],
        }
    }

    /// Returns a description, such as `a whole number from 1 to 65535`.
    pub fn describe(&self) -> String {
        match self {
            ValueKind::Whole { min, max } => format!("a whole number from {min} to {max}"),
            ValueKind::Bool => "true or false".to_owned(),
            ValueKind::Text => "text".to_owned(),
            ValueKind::Checked(rule) => rule.describe.to_owned(),
            ValueKind::Pattern => "a regular expression".to_owned(),
            ValueKind::Struct(members) => {
                let names: Vec<String> = members.iter().map(|member| format!("`{}`", member.name)).collect();
                format!("a map with {}", names.join(", "))
            }
            ValueKind::Open(..) | ValueKind::Map(_) => "a map".to_owned(),
            ValueKind::List(_) => "a list".to_owned(),
            ValueKind::Pair(..) => "a list of two".to_owned(),
            ValueKind::Choice(variants) => {
                let name = |(name, payload): &Variant| match payload {
                    None => format!("`{name}`"),
                    Some(_) => format!("`{{\"{name}\": ...}}`"),
                };
                format!("one of {}", variants.iter().map(name).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// Adds the members that readers require and users leave out.
pub fn fill_defaults(value: &mut Value, kind: &ValueKind) {
    match (kind, value) {
        (ValueKind::Struct(members) | ValueKind::Open(members, _), Value::Object(there)) => {
            for member in *members {
                match there.get_mut(member.name) {
                    Some(below) => fill_defaults(below, member.kind),
                    None if member.presence == Presence::Filled => {
                        there.insert(member.name.to_owned(), Value::Bool(false));
                    }
                    None => {}
                }
            }
        }
        (ValueKind::Map(below), Value::Object(there)) => {
            there.values_mut().for_each(|value| fill_defaults(value, below))
        }
        (ValueKind::Choice(variants), Value::Object(there)) => {
            for (name, payload) in *variants {
                if let (Some(below), Some(kind)) = (there.get_mut(*name), payload) {
                    fill_defaults(below, kind);
                }
            }
        }
        _ => {}
    }
}

const fn member(name: &'static str, kind: &'static ValueKind, default: &'static str) -> Member {
    Member { name, kind, presence: Presence::Optional, default }
}

const fn required(name: &'static str, kind: &'static ValueKind) -> Member {
    Member { name, kind, presence: Presence::Required, default: "" }
}

const fn not_null(name: &'static str, kind: &'static ValueKind) -> Member {
    Member { name, kind, presence: Presence::NotNull, default: "" }
}

const fn flag(name: &'static str, presence: Presence) -> Member {
    Member { name, kind: &ValueKind::Bool, presence, default: "false" }
}

static U16: ValueKind = ValueKind::Whole { min: 0, max: u16::MAX as u64 };
static U32: ValueKind = ValueKind::Whole { min: 0, max: u32::MAX as u64 };
static U64: ValueKind = ValueKind::Whole { min: 0, max: u64::MAX };
/// Levels of zstd. Negative ones and more than 22 are refused by other clients, or mean 22.
static ZSTD_LEVEL: ValueKind = ValueKind::Whole { min: 0, max: 22 };
static I32: ValueKind = ValueKind::Whole { min: i32::MIN as i64, max: i32::MAX as u64 };
/// Counts for which the reference implementation refuses 0 on reading, or waits forever.
static COUNT_U16: ValueKind = ValueKind::Whole { min: 1, max: u16::MAX as u64 };
static COUNT_U32: ValueKind = ValueKind::Whole { min: 1, max: u32::MAX as u64 };
static COUNT_U64: ValueKind = ValueKind::Whole { min: 1, max: u64::MAX };

/// Schema of the whole configuration.
pub static ROOT: ValueKind = ValueKind::Struct(&[
    member("inline_chunk_threshold_bytes", &U16, "512"),
    member("get_partial_values_concurrency", &COUNT_U16, "10"),
    member("compression", &COMPRESSION, ""),
    member("max_concurrent_requests", &COUNT_U16, "256"),
    member("max_concurrent_decodes", &COUNT_U16, "the number of cores"),
    member("caching", &CACHING, ""),
    member("storage", &STORAGE, ""),
    member("virtual_chunk_containers", &CONTAINERS, ""),
    member("manifest", &MANIFEST, ""),
    member("previous_file", &ValueKind::Text, ""),
    member("repo_update_retries", &ValueKind::Struct(&[member("default", &UPDATE_RETRIES, "")]), ""),
    member("num_updates_per_repo_info_file", &COUNT_U16, "1000"),
]);

static COMPRESSION: ValueKind = ValueKind::Struct(&[
    member("algorithm", &ValueKind::Choice(&[("zstd", None)]), "zstd"),
    member("level", &ZSTD_LEVEL, "3"),
]);

static CACHING: ValueKind = ValueKind::Struct(&[
    member("num_snapshot_nodes", &U64, "500000"),
    member("num_chunk_refs", &U64, "15000000"),
    member("num_transaction_changes", &U64, "0"),
    member("num_bytes_attributes", &U64, "0"),
    member("num_bytes_chunks", &U64, "0"),
]);

static STORAGE: ValueKind = ValueKind::Struct(&[
    member("concurrency", &CONCURRENCY, ""),
    member("retries", &RETRIES, ""),
    member("timeouts", &TIMEOUTS, ""),
    member("unsafe_use_conditional_update", &ValueKind::Bool, "true"),
    member("unsafe_use_conditional_create", &ValueKind::Bool, "true"),
    member("unsafe_use_metadata", &ValueKind::Bool, "true"),
    member("storage_class", &ValueKind::Text, ""),
    member("metadata_storage_class", &ValueKind::Text, ""),
    member("chunks_storage_class", &ValueKind::Text, ""),
    member("minimum_size_for_multipart_upload", &U64, "104857600"),
]);

static CONCURRENCY: ValueKind = ValueKind::Struct(&[
    member("max_concurrent_requests_for_object", &COUNT_U16, "18"),
    member("ideal_concurrent_request_size", &COUNT_U64, "12582912"),
]);

static RETRIES: ValueKind = ValueKind::Struct(&[
    member("max_tries", &COUNT_U16, "10"),
    member("initial_backoff_ms", &U32, "100"),
    member("max_backoff_ms", &U32, "180000"),
]);

static TIMEOUTS: ValueKind = ValueKind::Struct(&[
    member("connect_timeout_ms", &U32, ""),
    member("read_timeout_ms", &U32, ""),
    member("operation_timeout_ms", &U32, ""),
    member("operation_attempt_timeout_ms", &U32, ""),
]);

static UPDATE_RETRIES: ValueKind = ValueKind::Struct(&[
    member("max_tries", &COUNT_U16, "100"),
    member("initial_backoff_ms", &U32, "50"),
    member("max_backoff_ms", &U32, "30000"),
]);

/// Schema of the virtual chunk containers, by URL prefix; by name in old repositories.
pub static CONTAINERS: ValueKind = ValueKind::Map(&CONTAINER);

static CONTAINER: ValueKind = ValueKind::Struct(&[
    member("name", &ValueKind::Text, ""),
    required("url_prefix", &ValueKind::Text),
    required("store", &STORE),
]);

static STORE: ValueKind = ValueKind::Choice(&[
    ("in_memory", None),
    ("local_file_system", Some(&ValueKind::Text)),
    ("http", Some(&ValueKind::Open(&[HEADERS], &ValueKind::Text))),
    ("s3_compatible", Some(&S3)),
    ("s3", Some(&S3)),
    ("gcs", Some(&ValueKind::Map(&ValueKind::Text))),
    ("azure", Some(&ValueKind::Open(&AZURE, &ValueKind::Text))),
    ("tigris", Some(&S3)),
]);

const HEADERS: Member = not_null("headers", &ValueKind::Map(&ValueKind::Text));

static REGION: ValueKind =
    ValueKind::Checked(&Rule { describe: store_names::REGION_RULE, is_valid: |text| text.parse::<Region>().is_ok() });
static ACCOUNT: ValueKind =
    ValueKind::Checked(&Rule { describe: store_names::ACCOUNT_RULE, is_valid: |text| text.parse::<Account>().is_ok() });
static ENDPOINT: ValueKind = ValueKind::Checked(&Rule {
    describe: "a URL of a store: https://HOST, without a name, a password or a part after ? or #",
    is_valid: |text| text.parse::<Endpoint>().is_ok(),
});

/// Names under which the account may be stored.
static AZURE: [Member; 3] = [
    not_null("account", &ACCOUNT),
    not_null("azure_storage_account_name", &ACCOUNT),
    not_null("account_name", &ACCOUNT),
];

static S3: ValueKind = ValueKind::Struct(&[
    member("region", &REGION, ""),
    member("endpoint_url", &ENDPOINT, ""),
    flag("anonymous", Presence::Filled),
    flag("allow_http", Presence::Filled),
    flag("force_path_style", Presence::NotNull),
    member("network_stream_timeout_seconds", &U32, ""),
    flag("requester_pays", Presence::NotNull),
    member("checksum_algorithm", &CHECKSUM, ""),
]);

static CHECKSUM: ValueKind =
    ValueKind::Choice(&[("crc32", None), ("crc32c", None), ("crc64_nvme", None), ("sha1", None), ("sha256", None)]);

static MANIFEST: ValueKind = ValueKind::Struct(&[
    member("preload", &PRELOAD, ""),
    member("splitting", &ValueKind::Struct(&[member("split_sizes", &SPLIT_SIZES, "one manifest for each array")]), ""),
    member("virtual_chunk_location_compression", &LOCATION_COMPRESSION, ""),
    member("max_concurrent_manifest_fetches_during_commit", &U16, "1"),
]);

static PRELOAD: ValueKind = ValueKind::Struct(&[
    member("max_total_refs", &U32, "10000"),
    member("preload_if", &PRELOAD_CONDITION, "small arrays with names of coordinates"),
    member("max_arrays_to_scan", &U32, "50"),
]);

static LOCATION_COMPRESSION: ValueKind = ValueKind::Struct(&[
    member("min_num_chunks", &U16, "1000"),
    member("dictionary_max_training_samples", &U16, "100"),
    member("dictionary_max_size_bytes", &U32, "2048"),
    member("compression_level", &I32, "3"),
]);

static SPLIT_SIZES: ValueKind = ValueKind::List(&ValueKind::Pair(&ARRAY_CONDITION, &ValueKind::List(&SPLIT_DIMENSION)));

static SPLIT_DIMENSION: ValueKind =
    ValueKind::Struct(&[required("condition", &DIMENSION_CONDITION), required("num_chunks", &COUNT_U32)]);

static DIMENSION_CONDITION: ValueKind =
    ValueKind::Choice(&[("Axis", Some(&U64)), ("DimensionName", Some(&ValueKind::Pattern)), ("Any", None)]);

static REGEX: ValueKind = ValueKind::Struct(&[required("regex", &ValueKind::Pattern)]);

static ARRAY_CONDITION: ValueKind = ValueKind::Choice(&[
    ("or", Some(&ARRAY_CONDITIONS)),
    ("and", Some(&ARRAY_CONDITIONS)),
    ("path_matches", Some(&REGEX)),
    ("name_matches", Some(&REGEX)),
    ("any_array", None),
]);

static ARRAY_CONDITIONS: ValueKind = ValueKind::List(&ARRAY_CONDITION);

static PRELOAD_CONDITION: ValueKind = ValueKind::Choice(&[
    ("or", Some(&PRELOAD_CONDITIONS)),
    ("and", Some(&PRELOAD_CONDITIONS)),
    ("path_matches", Some(&REGEX)),
    ("name_matches", Some(&REGEX)),
    ("num_refs", Some(&ValueKind::Struct(&[required("from", &BOUND), required("to", &BOUND)]))),
    ("true", None),
    ("false", None),
]);

static PRELOAD_CONDITIONS: ValueKind = ValueKind::List(&PRELOAD_CONDITION);

static BOUND: ValueKind = ValueKind::Choice(&[("Unbounded", None), ("Included", Some(&U32)), ("Excluded", Some(&U32))]);
