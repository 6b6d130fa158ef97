//! Objects by key: local disks, stores of Amazon, Google and Microsoft and of their kind, web
//! servers; and a cache of them on a disk.
//!
//! It knows keys and bytes, and nothing of what they mean. Begin with [`storage`]: the trait
//! `Storage`, and how a location becomes one.
//!
//! Three rules that are hard to keep:
//!
//! 1. Every wait has a deadline, and a short answer keeps no operation alive.
//! 2. An object that exists is replaced only under a condition; where a store has none, that is
//!    known before anything is written.
//! 3. Bytes of a local disk are stored under a temporary name, flushed, and renamed; what a store
//!    answers is not kept unless it is whole.

pub mod disk_cache;
pub mod recognize;
pub mod storage;
