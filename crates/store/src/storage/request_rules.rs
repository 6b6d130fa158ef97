//! Rules for requests that a repository's configuration sets: their number at a time, the tries of
//! each one, and the pauses between these.
//!
//! The configuration is stored in the repository itself, so that the storage learns the rules only
//! once that is opened. What the user says (`--max-requests`) takes precedence. Whatever the rules
//! are, every operation ends before its [`deadline`](super::deadline).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use super::settings::{MAX_REQUESTS, Settings};
use super::transport::concurrency::ConcurrencyLimit;
use icechunkfs_format::format::config::RequestSettings;

/// Divisor of an operation's time budget for the longest pause: a repository must not make every
/// operation a timeout.
const PAUSES_IN_BUDGET: u32 = 8;

/// Rules for the requests to one store.
#[derive(Debug)]
pub struct RequestRules {
    configured: RwLock<RequestSettings>,
    limit: Arc<ConcurrencyLimit>,
    /// Number of requests at a time without a configured one; `None` if the user has set it, which
    /// no configuration changes.
    default: Option<u16>,
    longest_pause: Duration,
}

impl RequestRules {
    /// Creates the rules for a store that is reached with `settings`, and has `limit`.
    pub(super) fn new(settings: &Settings, limit: Arc<ConcurrencyLimit>) -> Self {
        let default = if settings.max_requests.is_some() { None } else { Some(settings.requests()) };
        let longest_pause = settings.budget() / PAUSES_IN_BUDGET;
        RequestRules { configured: RwLock::default(), limit, default, longest_pause }
    }

    /// Applies `configured` to the requests that are sent from now on.
    pub fn set(&self, configured: RequestSettings) {
        if *self.configured.read() == configured {
            return;
        }
        *self.configured.write() = configured;
        if let Some(default) = self.default {
            let at_once = configured.at_once.unwrap_or(default.into());
            self.limit.set_most(at_once.clamp(1, MAX_REQUESTS.into()) as usize);
        }
    }

    /// Returns the number of tries of a request, if the configuration limits it.
    pub(super) fn tries(&self) -> Option<u64> {
        self.configured.read().tries
    }

    /// Returns the minimum time between failure `failures` of a request, counted from 1, and the
    /// next try.
    pub(super) fn pause(&self, failures: u64) -> Duration {
        let RequestSettings { first_pause, longest_pause, .. } = *self.configured.read();
        let doubled = u32::try_from(failures.saturating_sub(1)).ok().and_then(|times| 2_u32.checked_pow(times));
        let pause = first_pause.unwrap_or_default().saturating_mul(doubled.unwrap_or(u32::MAX));
        pause.min(longest_pause.unwrap_or(Duration::MAX)).min(self.longest_pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(max_requests: Option<u16>) -> RequestRules {
        let settings = Settings { max_requests, timeout: Some(Duration::from_secs(80)), ..Settings::default() };
        RequestRules::new(&settings, Arc::new(ConcurrencyLimit::new(settings.requests().into())))
    }

    #[test]
    fn pauses_double_up_to_a_limit() {
        let rules = rules(None);
        let milliseconds = |failures| rules.pause(failures).as_millis();
        assert_eq!((milliseconds(1), milliseconds(u64::MAX), rules.tries()), (0, 0, None));
        let first_pause = Some(Duration::from_millis(300));
        rules.set(RequestSettings { first_pause, tries: Some(3), ..RequestSettings::default() });
        assert_eq!([1, 2, 3, 60].map(milliseconds), [300, 600, 1200, 10_000], "an eighth of the budget at most");
        rules.set(RequestSettings { first_pause, longest_pause: first_pause, ..RequestSettings::default() });
        assert_eq!(([1, 2].map(milliseconds), rules.tries()), ([300, 300], None));
    }

    #[test]
    fn the_command_line_takes_precedence() {
        let at_once = |at_once| RequestSettings { at_once, ..RequestSettings::default() };
        let free = rules(None);
        for (configured, expected) in [(Some(5), 5), (Some(u64::MAX), 4096), (None, 64)] {
            free.set(at_once(configured));
            assert_eq!(free.limit.most(), expected);
        }
        let set = rules(Some(9));
        set.set(at_once(Some(5)));
        assert_eq!(set.limit.most(), 9);
    }
}
