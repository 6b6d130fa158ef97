//! Properties of a repository as a whole: its status, its metadata and its feature flags (format
//! notes 1.4). Version 1 has none.
//!
//! A change applies to the state at the moment of writing, so that concurrent changes of different
//! properties all take effect.

use serde_json::{Map, Value, json};

use super::flags::FeatureFlag;
use super::update::{self, UpdateOptions};
use super::{Generation, Repository, check_storage_writable};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Metered;
use icechunkfs_base::printable;
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::repo_info::RepoInfo;
use icechunkfs_format::format::repo_state::{Operation, RawItem, RepoState, Status};

/// Longest reason of a status, and longest name of a metadata item, in bytes: `repo` is read with
/// every change.
const MAX_TEXT: usize = 4096;
/// Most bytes of memory that the metadata of a described repository takes.
const MAX_DESCRIBED: u64 = 1 << 20;

/// Properties of a repository of version 2.
#[derive(Clone, Copy, Debug)]
pub struct Properties<'a> {
    repository: &'a Repository,
    info: &'a RepoInfo,
}

impl Repository {
    /// Returns the properties of the repository. Fails with [`ErrorKind::Unsupported`] before
    /// version 2.
    pub fn properties(&self) -> Result<Properties<'_>> {
        match &self.generation {
            Generation::V2(info) => Ok(Properties { repository: self, info }),
            Generation::V1(_) | Generation::Alpha(_) => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{}: only repositories of format version 2 have a status, metadata and feature flags: run \
                     `icechunkfs migrate` first",
                    self.storage.location()
                ),
            )),
        }
    }
}

impl Properties<'_> {
    /// Returns the status.
    pub fn status(self) -> Status {
        self.info.status()
    }

    /// Returns the metadata of the repository.
    pub fn metadata(self) -> Result<Metered<Map<String, Value>>> {
        self.info.metadata()
    }

    /// Returns for each feature flag whether it is on, and whether the repository sets it.
    pub fn feature_flags(self) -> Result<Vec<(FeatureFlag, bool, bool)>> {
        let state = RepoState::from_info(self.info)?;
        Ok(FeatureFlag::ALL.into_iter().map(|flag| (flag, flag.is_on(&state), flag.set_to(&state).is_some())).collect())
    }

    /// Describes all properties as JSON: `{"status", "reason", "metadata", "flags"}`, where `flags`
    /// has those that are set, with true for on, and `metadata` is null if it is very long. None if
    /// they cannot be read.
    pub fn describe(self) -> Option<Value> {
        let info = self.info;
        // A mount keeps what this returns.
        let metadata = info.metadata().ok()?;
        let metadata = (metadata.reserved() <= MAX_DESCRIBED).then(|| metadata.into_inner());
        // Without the rest of the state, which may list thousands of commits.
        let (enabled_feature_flags, disabled_feature_flags) = info.feature_flags();
        let state = RepoState { enabled_feature_flags, disabled_feature_flags, ..RepoState::default() };
        let flags =
            FeatureFlag::ALL.into_iter().filter_map(|flag| Some((flag.name().to_owned(), flag.set_to(&state)?)));
        let status = info.status();
        let reason = status.reason.as_deref().map(|reason| printable::shorten(reason, MAX_TEXT));
        Some(json!({
            "status": status.name(),
            "reason": reason,
            "metadata": metadata,
            "flags": flags.map(|(name, is_on)| (name, Value::from(is_on))).collect::<Map<_, _>>(),
        }))
    }

    /// Lets the repository take writes, or none. Returns false if it does so already, for the same
    /// reason.
    ///
    /// Only this is possible while it is read-only. Programs that are at work notice it with their
    /// next change.
    pub async fn set_status(self, clock: Clock, is_read_only: bool, reason: Option<&str>) -> Result<bool> {
        let availability = u8::from(is_read_only);
        check_text("the reason", reason.unwrap_or_default())?;
        let change = |state: &mut RepoState| {
            if (state.status.availability, state.status.reason.as_deref()) == (availability, reason) {
                return Ok(None);
            }
            state.status = Status { availability, set_at: clock(), reason: reason.map(str::to_owned) };
            Ok(Some(Operation::StatusChanged { status: Some(state.status.clone()) }))
        };
        self.change(clock, true, change).await
    }

    /// Sets the metadata items in `changes`, and removes those without a value. Returns false if
    /// nothing changes.
    pub async fn change_metadata(self, clock: Clock, changes: &[(String, Option<Value>)]) -> Result<bool> {
        let mut items = Vec::with_capacity(changes.len());
        for (name, value) in changes {
            check_text("the name of a metadata item", name)?;
            let item = value.as_ref().map(|value| RawItem::new(SpecVersion::V2, name, value));
            items.push((name, item.transpose()?));
        }
        let change = |state: &mut RepoState| {
            let before = state.metadata.clone();
            for (name, item) in &items {
                let place = state.metadata.iter().position(|known| known.name == **name);
                match (place.and_then(|at| state.metadata.get_mut(at)), item) {
                    (Some(known), Some(item)) => known.clone_from(item),
                    (None, Some(item)) => state.metadata.push(item.clone()),
                    (_, None) => state.metadata.retain(|known| known.name != **name),
                }
            }
            // Readers search the list by name.
            state.metadata.sort_by(|a, b| a.name.cmp(&b.name));
            Ok((state.metadata != before).then_some(Operation::MetadataChanged))
        };
        self.change(clock, false, change).await
    }

    /// Switches a feature flag on or off, or lets its default apply again. Returns false if nothing
    /// changes.
    pub async fn set_feature_flag(self, clock: Clock, flag: FeatureFlag, to: Option<bool>) -> Result<bool> {
        let change = |state: &mut RepoState| {
            if flag.set_to(state) == to {
                return Ok(None);
            }
            let id = flag.id();
            let lists = [&mut state.enabled_feature_flags, &mut state.disabled_feature_flags];
            for (list, holds) in lists.into_iter().zip([to == Some(true), to == Some(false)]) {
                if let Some(ids) = list {
                    ids.retain(|one| *one != id);
                }
                if holds {
                    let ids = list.get_or_insert_default();
                    ids.push(id);
                    ids.sort_unstable();
                }
            }
            let new_value = to.unwrap_or_default();
            let is_set = to.is_some();
            Ok(Some(Operation::FeatureFlagChanged { id, new_value, is_set }))
        };
        self.change(clock, false, change).await
    }

    async fn change(
        self,
        clock: Clock,
        is_status: bool,
        change: impl FnMut(&mut RepoState) -> Result<Option<Operation>>,
    ) -> Result<bool> {
        let storage = &*self.repository.storage;
        if is_status {
            check_storage_writable(storage)?;
        } else {
            self.repository.check_changes_allowed().await?;
        }
        let options = UpdateOptions { is_of_status: is_status, ..UpdateOptions::default() };
        let changed = update::update_if(storage, clock, options, change).await;
        changed.map(|state| state.is_some()).map_err(|error| match error.kind() {
            ErrorKind::Timeout | ErrorKind::Io => error.context(
                "the storage does not answer, so the repository may or may not have changed: see `icechunkfs config` \
                 later",
            ),
            _ => error,
        })
    }
}

fn check_text(what: &str, text: &str) -> Result<()> {
    if text.len() > MAX_TEXT {
        return Err(Error::invalid(format!("{what} has {} bytes; at most {MAX_TEXT} are allowed", text.len())));
    }
    Ok(())
}
