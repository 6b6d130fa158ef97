//! Names and groups of users, from `/etc/passwd` and `/etc/group`.
//!
//! Users and groups of a network directory are unknown here. Their groups count as shared, which is
//! the safe answer.

use std::fs::read_to_string;

/// Number that no user has: it stands for a user who is not known.
pub const UNKNOWN_USER: u32 = u32::MAX;

/// Returns the name and number of `user` for messages.
pub fn name_of(user: u32) -> String {
    if user == UNKNOWN_USER {
        return "unknown".to_owned();
    }
    let users = read_to_string("/etc/passwd").unwrap_or_default();
    let name = lines(&users).find(|fields| number(fields, 2) == Some(user)).and_then(|fields| fields.first().copied());
    name.map_or_else(|| user.to_string(), |name| format!("{name} ({user})"))
}

/// Returns true if no user but `owner` is in `group`.
pub(super) fn is_private(group: u32, owner: u32) -> bool {
    let (Ok(users), Ok(groups)) = (read_to_string("/etc/passwd"), read_to_string("/etc/group")) else { return false };
    is_private_by(&users, &groups, group, owner)
}

fn is_private_by(users: &str, groups: &str, group: u32, owner: u32) -> bool {
    let owner_name =
        lines(users).find(|fields| number(fields, 2) == Some(owner)).and_then(|fields| fields.first().copied());
    let Some(owner_name) = owner_name else { return false };
    let mut others = lines(users).filter(|fields| number(fields, 3) == Some(group) && number(fields, 2) != Some(owner));
    let mut found = lines(groups).filter(|fields| number(fields, 2) == Some(group)).peekable();
    found.peek().is_some()
        && others.next().is_none()
        && found.all(|fields| {
            let members = fields.get(3).copied().unwrap_or_default();
            members.split(',').all(|member| member.is_empty() || member == owner_name)
        })
}

fn lines(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().map(|line| line.split(':').collect())
}

fn number(fields: &[&str], at: usize) -> Option<u32> {
    fields.get(at)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_of_one_user_is_private() {
        let users =
            "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:\nbob:x:1001:100::/home/bob:\neve:x:1002:100::/:\n";
        let groups = "root:x:0:\nann:x:1000:\nusers:x:100:\nlab:x:50:ann,bob\nalone:x:51:ann\n";
        let is = |group, owner| is_private_by(users, groups, group, owner);
        assert!(is(0, 0) && is(1000, 1000) && is(51, 1000));
        assert!(!is(100, 1001) && !is(50, 1000) && !is(1000, 1001) && !is(51, 1001), "others are in it");
        assert!(!is(7, 1000) && !is(1000, 5000), "not known here");
    }
}
