//! Stages of an operation, and the time that each takes: the answer to "why is it slow?".
//!
//! The end of each stage is an event of level debug, which `--verbose` shows.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use tracing::debug;

/// Stages of one operation, for other threads to read.
#[derive(Debug, Default)]
pub struct Stages(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    past: Vec<StageTime>,
    present: Option<(&'static str, Instant)>,
}

/// A stage and its time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageTime {
    /// Name of the stage.
    pub stage: &'static str,
    /// Its time so far. All times of a stage that was entered again are in one sum.
    #[serde(serialize_with = "seconds")]
    pub seconds: Duration,
}

impl Stages {
    /// Creates the stages of an operation that begins with `stage`.
    pub fn begin(stage: &'static str) -> Self {
        let stages = Stages::default();
        stages.enter(stage);
        stages
    }

    /// The present stage ends, and `stage` begins.
    pub fn enter(&self, stage: &'static str) {
        self.change(Some(stage), Instant::now());
    }

    /// The last stage ends.
    pub fn end(&self) {
        self.change(None, Instant::now());
    }

    /// Returns the stages so far, in the order in which they were first entered.
    pub fn taken(&self) -> Vec<StageTime> {
        self.taken_at(Instant::now())
    }

    fn change(&self, to: Option<&'static str>, now: Instant) {
        let mut taken = self.0.lock();
        if taken.present.map(|(stage, _)| stage) == to {
            return;
        }
        let ended = std::mem::replace(&mut taken.present, to.map(|stage| (stage, now)));
        if let Some((stage, since)) = ended {
            let time = now.saturating_duration_since(since);
            taken.add(stage, time);
            drop(taken);
            debug!("{stage}: {:.3} s", time.as_secs_f64());
        }
    }

    fn taken_at(&self, now: Instant) -> Vec<StageTime> {
        let taken = self.0.lock();
        let mut all = Taken { past: taken.past.clone(), present: None };
        if let Some((stage, since)) = taken.present {
            all.add(stage, now.saturating_duration_since(since));
        }
        all.past
    }
}

impl Drop for Stages {
    /// An operation that fails ends in the stage in which it failed.
    fn drop(&mut self) {
        self.end();
    }
}

impl Taken {
    fn add(&mut self, stage: &'static str, seconds: Duration) {
        match self.past.iter_mut().find(|past| past.stage == stage) {
            Some(past) => past.seconds += seconds,
            None => self.past.push(StageTime { stage, seconds }),
        }
    }
}

fn seconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    // Milliseconds are precise enough, and microseconds would be noise.
    serializer.serialize_f64((time.as_secs_f64() * 1000.0).round() / 1000.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn time(stage: &'static str, seconds: u64) -> StageTime {
        StageTime { stage, seconds: Duration::from_secs(seconds) }
    }

    #[test]
    fn each_stage_has_the_time_until_the_next() {
        let stages = Stages::default();
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        stages.change(Some("first"), begin);
        stages.change(Some("second"), after(2));
        assert_eq!(stages.taken_at(after(7)), [time("first", 2), time("second", 5)]);
        stages.change(None, after(9));
        assert_eq!(stages.taken_at(after(20)), [time("first", 2), time("second", 7)]);
    }

    #[test]
    fn a_stage_that_comes_again_is_one_sum() {
        let stages = Stages::default();
        let begin = Instant::now();
        for (n, stage) in ["compare", "write", "compare", "write"].into_iter().enumerate() {
            stages.change(Some(stage), begin + Duration::from_secs(3 * n as u64));
        }
        assert_eq!(stages.taken_at(begin + Duration::from_secs(10)), [time("compare", 6), time("write", 4)]);
    }

    #[test]
    fn to_enter_the_present_stage_changes_nothing() {
        let stages = Stages::default();
        let begin = Instant::now();
        stages.change(Some("write"), begin);
        stages.change(Some("write"), begin + Duration::from_secs(1));
        assert_eq!(stages.taken_at(begin + Duration::from_secs(3)), [time("write", 3)]);
    }

    #[test]
    fn times_are_written_in_seconds() {
        let time = StageTime { stage: "write", seconds: Duration::from_micros(1_234_567) };
        assert_eq!(serde_json::to_string(&time).unwrap(), r#"{"stage":"write","seconds":1.235}"#);
    }
}
