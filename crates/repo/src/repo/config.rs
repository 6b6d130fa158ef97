//! Changes of the persisted configuration: in `repo`, or in version 1's `config.yaml`.
//!
//! A change applies to the configuration at the moment of writing, so that two concurrent changes
//! of different settings both take effect. A repository without a configuration gets one only when
//! something is set.

use std::sync::Arc;

use bytes::Bytes;

use super::update::{self, UpdateOptions, backup_name};
use super::v1::{CONFIG_KEY, MAX_CONFIG_FILE};
use super::{Generation, Repository, alpha, v1};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::config::RepoConfig;
use icechunkfs_format::format::config_edit::{ConfigChange, encode};
use icechunkfs_format::format::repo_state::{Operation, RepoState};
use icechunkfs_store::storage::{Condition, Storage, Version};

/// Attempts to write `config.yaml`, each but the first after a lost race.
const TRIES: u32 = 100;

impl Repository {
    /// Applies `change` to the configuration and returns its result; none if nothing changes. Calls
    /// `change` again after each lost race.
    pub async fn change_config(
        &self,
        clock: Clock,
        mut change: impl FnMut(&RepoConfig) -> Result<Option<ConfigChange>>,
    ) -> Result<Option<ConfigChange>> {
        self.check_changes_allowed().await?;
        let mut last = None;
        let mut noted = |stored: &RepoConfig| {
            let changed = change(stored)?;
            last.clone_from(&changed);
            Ok(changed)
        };
        let changed = match &self.generation {
            Generation::Alpha(_) => Err(alpha::read_only(self.storage.location())),
            Generation::V1(_) => change_yaml(&*self.storage, clock, &mut noted).await,
            Generation::V2(_) => change_repo(&*self.storage, clock, &mut noted).await,
        };
        let error = match changed {
            Err(error) if matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Io) => error,
            changed => return changed,
        };
        // The answer of a successful write can be lost. If nothing is left to change, the write
        // succeeded.
        let stored = match Repository::open(Arc::clone(&self.storage)).await {
            Ok(repository) => repository.config().await,
            Err(error) => Err(error),
        };
        match stored.and_then(|stored| change(&stored)) {
            Ok(None) => Ok(last),
            Ok(Some(_)) => Err(error),
            Err(_) => Err(error.context(
                "the storage does not answer, so the configuration may or may not have changed; see `config REPO get` \
                 later",
            )),
        }
    }
}

async fn change_repo(
    storage: &dyn Storage,
    clock: Clock,
    change: &mut impl FnMut(&RepoConfig) -> Result<Option<ConfigChange>>,
) -> Result<Option<ConfigChange>> {
    let mut done = None;
    let change = |state: &mut RepoState| {
        let stored = match &state.config {
            Some(bytes) => RepoConfig::from_flexbuffer(bytes).context(|| "repo: config")?,
            None => RepoConfig::default(),
        };
        let Some(changed) = change(&stored)? else { return Ok(None) };
        state.config = if changed.members.is_empty() { None } else { Some(encode::flexbuffer(&changed.members)?) };
        done = Some(changed);
        Ok(Some(Operation::ConfigChanged))
    };
    let updated = update::update_if(storage, clock, UpdateOptions::default(), change).await?;
    Ok(updated.and(done))
}

async fn change_yaml(
    storage: &dyn Storage,
    clock: Clock,
    change: &mut impl FnMut(&RepoConfig) -> Result<Option<ConfigChange>>,
) -> Result<Option<ConfigChange>> {
    for _ in 0..TRIES {
        let old: Option<(Bytes, Version)> = match storage.get_versioned(CONFIG_KEY, MAX_CONFIG_FILE).await {
            Ok(found) => Some(found),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let stored = match &old {
            Some((bytes, _)) => RepoConfig::from_yaml(bytes).context(|| CONFIG_KEY)?,
            None => RepoConfig::default(),
        };
        let Some(changed) = change(&stored)? else { return Ok(None) };
        let new = encode::yaml(&changed.members, old.as_ref().map(|(bytes, _)| &**bytes))?;
        let condition = match old {
            Some((bytes, version)) => {
                // The reference implementation also keeps a copy, from which the old
                // configuration can be recovered.
                let copy = format!("overwritten/{}", backup_name(CONFIG_KEY, clock())?);
                storage.put(&copy, bytes, Condition::Always).await?;
                Condition::Unchanged(version)
            }
            None => Condition::Absent,
        };
        match v1::put(storage, CONFIG_KEY, new.into(), condition).await {
            Ok(()) if v1::is_migrated(storage).await? => {
                let why = "the repository is being migrated to version 2, and may not have this change: try again";
                return Err(Error::new(ErrorKind::Migrated, format!("{CONFIG_KEY}: {why}")));
            }
            Ok(()) => return Ok(Some(changed)),
            Err(error) if error.kind() == ErrorKind::Contended => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::new(ErrorKind::Contended, format!("{CONFIG_KEY}: concurrent changes came first {TRIES} times")))
}
