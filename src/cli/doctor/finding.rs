//! A finding of a check: what was found, how bad it is, and what to do.

use std::fmt;

use serde::Serialize;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// Nothing is wrong.
    Ok,
    /// Something is missing that some uses need.
    Warn,
    /// A mount or its use will fail.
    Fail,
}

/// Finding of a check.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    check: &'static str,
    pub(super) severity: Severity,
    text: String,
    remedy: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, text: impl Into<String>) -> Self {
        Finding { check, severity: Severity::Ok, text: text.into(), remedy: None }
    }

    pub(super) fn warn(check: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { check, severity: Severity::Warn, text: text.into(), remedy: Some(remedy.into()) }
    }

    pub(super) fn fail(check: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { severity: Severity::Fail, ..Finding::warn(check, text, remedy) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Ok => "ok",
            Severity::Warn => "warn",
            Severity::Fail => "fail",
        };
        write!(f, "{severity:<5} {}: {}", self.check, self.text)?;
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, ". {remedy}"))
    }
}
