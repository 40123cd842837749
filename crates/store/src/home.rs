//! Home folders, as the list of accounts has them.

use std::path::PathBuf;

/// Where Unix lists its accounts.
#[cfg(unix)]
const ACCOUNTS: &str = "/etc/passwd";

/// The home folder of whoever runs this: `HOME`, or where that is not set or empty, what the account says.
pub fn home() -> Option<PathBuf> {
    std::env::home_dir().filter(|home| !home.as_os_str().is_empty()).or_else(account_home)
}

/// The home folder that the account of whoever runs this has.
pub fn account_home() -> Option<PathBuf> {
    #[cfg(unix)]
    {
        let id = rustix::process::getuid().as_raw().to_string();
        field_of(&std::fs::read_to_string(ACCOUNTS).ok()?, 2, &id)
    }
    #[cfg(not(unix))]
    None
}

/// The home folder of a user.
pub(crate) fn home_of(user: &str) -> Option<PathBuf> {
    #[cfg(unix)]
    {
        field_of(&std::fs::read_to_string(ACCOUNTS).ok()?, 0, user)
    }
    #[cfg(not(unix))]
    {
        let _ = user;
        None
    }
}

/// The home folder of the account one field of which has a value.
#[cfg(unix)]
fn field_of(accounts: &str, field: usize, value: &str) -> Option<PathBuf> {
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
        assert_eq!(field_of(accounts, 0, "me"), Some("/home/me".into()));
        assert_eq!(field_of(accounts, 2, "0"), Some("/root".into()));
        assert_eq!(field_of(accounts, 2, "7"), None);
        assert_eq!(field_of(accounts, 0, "nobody"), None);
    }
}
