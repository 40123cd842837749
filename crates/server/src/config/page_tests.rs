//! Writes the tables of `docs/reference/settings.md`, and compares the table of settings with the
//! configuration.

use super::*;
use crate::util::generated_file::{assert_current, read, replace_section, table_row};

const PAGE: &str = "docs/reference/settings.md";
const COLUMNS: usize = 100;

/// All groups with the names of their sections in the page.
const GROUPS: [(SettingGroup, &str); 7] = [
    (SettingGroup::Server, "server"),
    (SettingGroup::Engine, "engine"),
    (SettingGroup::Access, "access"),
    (SettingGroup::Registries, "registries"),
    (SettingGroup::Remote, "remote"),
    (SettingGroup::Mirror, "mirror"),
    (SettingGroup::Commands, "commands"),
];

#[test]
fn the_page_of_settings_has_the_description_of_every_setting() {
    let mut page = read(PAGE);
    for (group, name) in GROUPS {
        replace_section(&mut page, &format!("settings: {name}"), &table(group));
    }
    replace_section(&mut page, "variables without a safe default", &strict_variables());
    assert_current(PAGE, &page);
    let rows = page.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, SETTINGS.len(), "each setting has one row");
}

fn table(group: SettingGroup) -> String {
    let mut out = table_row(&["variable", "key", "default", "meaning"]) + "|---|---|---|---|\n";
    for setting in SETTINGS.iter().filter(|setting| setting.group == group) {
        let variables: Vec<_> = setting.variables.iter().map(|name| format!("`{name}`")).collect();
        let list = if setting.kind == ValueKind::List { " (list)" } else { "" };
        let default = match setting.default {
            SettingDefault::Unset => String::new(),
            SettingDefault::Value(value) => format!("`{value}`"),
            SettingDefault::Described(text) => text.to_owned(),
        };
        let key = format!("`{}`{list}", setting.key);
        out += &table_row(&[&variables.join(", "), &key, &default, setting.meaning]);
    }
    out
}

/// Returns the variables that fail the start of the program if their value is invalid, in lines of
/// at most 100 columns.
fn strict_variables() -> String {
    let strict = SETTINGS.iter().filter(|setting| is_strict(setting)).map(|s| s.variables[0]);
    let names: Vec<_> = strict.map(|name| format!("`{name}`")).collect();
    let text = names.join(", ") + ".";
    let mut out = String::new();
    let mut line_length = 0;
    for word in text.split(' ') {
        if line_length + 1 + word.len() > COLUMNS {
            out += "\n";
            line_length = 0;
        } else if line_length > 0 {
            out += " ";
            line_length += 1;
        }
        out += word;
        line_length += word.len();
    }
    out
}

/// Whether an invalid value of the variable is an error and not a warning.
fn is_strict(setting: &SettingDefinition) -> bool {
    // Settings other than paths and free texts reject at least one of these values.
    let invalid = ["* [", "a b ["];
    let is_error = |value| matches!(config_with(setting, value), Err(ConfigError::Variable { .. }));
    invalid.into_iter().any(is_error)
}

/// Reads the configuration with one variable and a home directory.
fn config_with(setting: &SettingDefinition, value: &str) -> Result<Config, ConfigError> {
    Config::from_variables(|name| match name {
        "HOME" => Some("/home/me".into()),
        _ => (name == setting.variables[0]).then(|| value.to_owned()),
    })
}

#[test]
fn the_table_has_the_defaults_of_the_configuration() {
    let value_of = |config: &Config, key: &str| {
        config.settings.iter().find(|setting| setting.key == key).unwrap().value.clone()
    };
    for setting in SETTINGS {
        let default = value_of(&config_with(setting, "").unwrap(), setting.key);
        match setting.default {
            SettingDefault::Unset => assert_eq!(default, None, "{}", setting.key),
            SettingDefault::Value(value) => {
                let with_value = value_of(&config_with(setting, value).unwrap(), setting.key);
                assert_eq!(with_value, default, "{}", setting.key);
            }
            SettingDefault::Described(_) => {}
        }
    }
}

#[test]
fn variables_are_the_key_in_upper_case_with_a_prefix() {
    for setting in SETTINGS {
        let name = setting.key.to_uppercase().replace('.', "_");
        for variable in setting.variables {
            let prefix = variable.strip_suffix(&name);
            assert!(matches!(prefix, Some("PUNA_" | "OLLAMA_")), "{variable}");
        }
        assert!(!setting.variables.is_empty(), "{}", setting.key);
    }
}
