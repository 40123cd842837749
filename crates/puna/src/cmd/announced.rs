//! `--mirror auto`: a mirror that announces itself on the network, once somebody has said yes to it.

use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;

use anyhow::{Result, bail};
use puna_registry::{Announced, announced};
use puna_server::Config;

/// How long mirrors are listened for.
const WAIT: Duration = Duration::from_millis(1500);

/// The address of a mirror to use.
pub fn mirror() -> Result<String> {
    let found = announced(WAIT)?;
    let configured = Config::from_env()?.registry_mirrors;
    let is_configured = |mirror: &&Announced| configured.iter().any(|known| same(known, &mirror.address));
    if let Some(known) = found.iter().find(is_configured) {
        return Ok(known.address.clone());
    }
    let Some(first) = found.first() else {
        bail!("no mirror announces itself on this network: name one by --mirror ADDRESS")
    };
    if !std::io::stdin().is_terminal() {
        bail!(
            "{} at {} announces itself as a mirror, which anybody on the network can do: if you trust it, say --mirror {}",
            first.name,
            first.address,
            first.address
        );
    }
    for mirror in &found {
        eprint!("Use the mirror {} at {}? [y/N] ", mirror.name, mirror.address);
        std::io::stderr().flush()?;
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        if matches!(answer.trim(), "y" | "Y" | "yes") {
            return Ok(mirror.address.clone());
        }
    }
    bail!("no mirror was chosen: `puna pull` without --mirror asks the registry")
}

/// Whether two addresses are the same mirror, of which one may lack the scheme.
fn same(configured: &str, found: &str) -> bool {
    let bare =
        |text: &str| text.split_once("://").map_or(text, |(_, rest)| rest).trim_end_matches('/').to_owned();
    bare(configured) == bare(found)
        && (!configured.contains("://") || configured.starts_with("https") == found.starts_with("https"))
}

#[cfg(test)]
mod tests {
    use super::same;

    #[test]
    fn a_mirror_is_known_with_and_without_its_scheme() {
        assert!(same("http://10.0.0.1:5000/", "http://10.0.0.1:5000"));
        assert!(same("10.0.0.1:5000", "http://10.0.0.1:5000"));
        assert!(!same("https://10.0.0.1:5000", "http://10.0.0.1:5000"));
        assert!(!same("10.0.0.1:5001", "http://10.0.0.1:5000"));
    }
}
