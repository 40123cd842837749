//! Home folders of users.

use std::path::PathBuf;

/// The file with the accounts of a Unix system.
#[cfg(unix)]
const ACCOUNTS: &str = "/etc/passwd";

/// The home folder of the current user: `HOME`, or the account's if the variable is unset or empty.
pub fn home_dir() -> Option<PathBuf> {
    std::env::home_dir().filter(|home| !home.as_os_str().is_empty()).or_else(account_home_dir)
}

/// The home folder in the current user's account.
pub fn account_home_dir() -> Option<PathBuf> {
    #[cfg(unix)]
    {
        let id = rustix::process::getuid().as_raw().to_string();
        account_home_by_field(&std::fs::read_to_string(ACCOUNTS).ok()?, 2, &id)
    }
    #[cfg(not(unix))]
    None
}

/// The home folder of a user.
pub(crate) fn user_home_dir(user: &str) -> Option<PathBuf> {
    #[cfg(unix)]
    {
        account_home_by_field(&std::fs::read_to_string(ACCOUNTS).ok()?, 0, user)
    }
    #[cfg(not(unix))]
    {
        let _ = user;
        None
    }
}

/// The home folder of the account whose field number `field` is `value`.
#[cfg(unix)]
fn account_home_by_field(accounts: &str, field: usize, value: &str) -> Option<PathBuf> {
    let account = accounts
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields.get(field) == Some(&value))?;
    account.get(5).filter(|home| !home.is_empty()).map(PathBuf::from)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_by_name_and_by_number() {
        let accounts = "root:x:0:0:root:/root:/bin/sh\n\nbroken\nme:x:1000:1000:,,,:/home/me:/bin/sh\nno:x:7:7:::\n";
        assert_eq!(account_home_by_field(accounts, 0, "me"), Some("/home/me".into()));
        assert_eq!(account_home_by_field(accounts, 2, "0"), Some("/root".into()));
        assert_eq!(account_home_by_field(accounts, 2, "7"), None);
        assert_eq!(account_home_by_field(accounts, 0, "nobody"), None);
    }
}
