//! `--mirror auto`: uses a mirror announced on the local network after the user agrees.

use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;

use anyhow::{Result, bail};
use puna_registry::{DiscoveredMirror, discover_mirrors};
use puna_server::Config;

/// Time for which mirrors are searched.
const DISCOVERY_TIMEOUT: Duration = Duration::from_millis(1500);

/// Address of the mirror to use.
pub fn choose_mirror() -> Result<String> {
    let found = discover_mirrors(DISCOVERY_TIMEOUT)?;
    let configured = Config::from_env()?.registry_mirrors;
    let stdin = std::io::stdin();
    let mut asked = stdin.is_terminal().then(|| stdin.lock());
    choose(found, &configured, asked.as_mut(), &mut crate::out::stderr())
}

/// Chooses a configured mirror, or a mirror that the user confirms. Without a terminal, no mirror
/// can be confirmed.
fn choose(
    found: Vec<DiscoveredMirror>,
    configured: &[String],
    terminal: Option<&mut impl BufRead>,
    screen: &mut impl Write,
) -> Result<String> {
    let is_configured = |mirror: &&DiscoveredMirror| {
        configured.iter().any(|known| is_same_mirror(known, &mirror.address))
    };
    if let Some(known) = found.iter().find(is_configured) {
        return Ok(known.address.clone());
    }
    let Some(first) = found.first() else {
        bail!("no mirror announces itself on this network: use --mirror ADDRESS")
    };
    let Some(terminal) = terminal else {
        bail!(
            "{} at {} announces itself as a mirror, as any machine on the network can: if you trust it, use --mirror {}",
            first.name,
            first.address,
            first.address
        );
    };
    for mirror in &found {
        write!(screen, "Use the mirror {} at {}? [y/N] ", mirror.name, mirror.address)?;
        screen.flush()?;
        let mut answer = String::new();
        terminal.read_line(&mut answer)?;
        if matches!(answer.trim(), "y" | "Y" | "yes") {
            return Ok(mirror.address.clone());
        }
    }
    bail!("no mirror was chosen: `puna pull` without --mirror uses the registry")
}

/// Whether two addresses name the same mirror. One of them may lack the scheme.
fn is_same_mirror(configured: &str, found: &str) -> bool {
    let bare = |text: &str| {
        text.split_once("://").map_or(text, |(_, rest)| rest).trim_end_matches('/').to_owned()
    };
    bare(configured) == bare(found)
        && (!configured.contains("://")
            || configured.starts_with("https") == found.starts_with("https"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the choice with the mirrors found and returns its result and the questions; `None` for
    /// `answers` means no terminal.
    fn chosen(configured: &[&str], answers: Option<&str>) -> (Result<String, String>, String) {
        let one = |n: u8| DiscoveredMirror {
            name: format!("m{n}"),
            address: format!("http://10.0.0.{n}:5000"),
        };
        let configured: Vec<String> = configured.iter().map(|text| (*text).to_owned()).collect();
        let (mut answers, mut screen) = (answers.map(str::as_bytes), Vec::new());
        let chosen = choose(vec![one(1), one(2)], &configured, answers.as_mut(), &mut screen);
        (chosen.map_err(|error| error.to_string()), String::from_utf8(screen).unwrap())
    }

    #[test]
    fn a_discovered_mirror_needs_confirmation() {
        let (first, second) = ("http://10.0.0.1:5000", "http://10.0.0.2:5000");
        let (none, asked) = chosen(&[], None);
        assert!(none.unwrap_err().contains(&format!("--mirror {first}")) && asked.is_empty());
        for (answers, address) in [("y\n", first), ("n\nyes\n", second), ("\nY\n", second)] {
            let (chosen, asked) = chosen(&[], Some(answers));
            assert_eq!(chosen.as_deref(), Ok(address), "{answers:?}");
            assert!(asked.contains(&format!("Use the mirror m1 at {first}? [y/N] ")), "{asked}");
        }
        for answers in ["", "\n\n", "n\nn\n", "yep\nno\n"] {
            let (none, asked) = chosen(&[], Some(answers));
            assert!(none.unwrap_err().contains("no mirror was chosen"), "{answers:?}");
            assert!(
                asked.contains(&format!("Use the mirror m2 at {second}?")),
                "each is asked about: {asked}"
            );
        }
        // A configured mirror needs no confirmation.
        assert_eq!(
            chosen(&["10.0.0.2:5000"], Some("n\nn\n")),
            (Ok(second.to_owned()), String::new())
        );
    }

    #[test]
    fn a_mirror_matches_with_and_without_its_scheme() {
        assert!(is_same_mirror("http://10.0.0.1:5000/", "http://10.0.0.1:5000"));
        assert!(is_same_mirror("10.0.0.1:5000", "http://10.0.0.1:5000"));
        assert!(!is_same_mirror("https://10.0.0.1:5000", "http://10.0.0.1:5000"));
        assert!(!is_same_mirror("10.0.0.1:5001", "http://10.0.0.1:5000"));
    }
}
