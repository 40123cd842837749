//! Parser of session commands, which are lines that begin with `/`.
//!
//! A command is recognized by the start of its line, so `/loadx` means `/load`. Blanks separate the
//! arguments from the first word.

/// A command to the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Help(Topic),
    Leave,
    Clear,
    /// Prefix of the names to list.
    List(Option<String>),
    /// `None` if the line does not contain exactly one name.
    Load(Option<String>),
    /// `None` if the line does not contain exactly one name.
    Save(Option<String>),
    Set(Setting),
    Show(Item),
    /// First word of a line that is no known command.
    Unknown(String),
}

/// Topic of a usage text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    Commands,
    Set,
    Show,
    Shortcuts,
    Parameters,
    /// The user asked for help on an unknown topic.
    Unknown,
}

/// Argument of `/set`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    History(bool),
    WordWrap(bool),
    Verbose(bool),
    /// Reasoning level, if the line names one.
    Think(Option<String>),
    NoThink,
    /// Whether the line names a supported format.
    Format(bool),
    NoFormat,
    Parameter {
        name: String,
        values: Vec<String>,
    },
    System(String),
    /// Start of a system message; its closing `"""` is on a later line.
    SystemOpen(String),
    Unknown(String),
}

/// Argument of `/show`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Info,
    License,
    Modelfile,
    Parameters,
    System,
    Template,
    Unknown(String),
}

/// Delimiter of texts that span several lines.
pub(super) const QUOTES: &str = r#"""""#;

impl Command {
    /// Parses the command on a line; `None` if the line is a message.
    pub(super) fn parse(line: &str) -> Option<Self> {
        if !line.starts_with('/') {
            return None;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let is = |name: &str| line.starts_with(name);
        let only_argument = || match words[1..] {
            [name] => Some(name.to_owned()),
            _ => None,
        };
        Some(if is("/list") {
            Self::List(words.get(1).map(|&w| w.to_owned()))
        } else if is("/load") {
            Self::Load(only_argument())
        } else if is("/save") {
            Self::Save(only_argument())
        } else if is("/clear") {
            Self::Clear
        } else if is("/set") {
            set(&words[1..])
        } else if is("/show") {
            show(words.get(1).copied())
        } else if is("/help") || is("/?") {
            Self::Help(Topic::named(words.get(1).copied()))
        } else if is("/exit") || is("/bye") {
            Self::Leave
        } else {
            Self::Unknown(words[0].to_owned())
        })
    }
}

impl Topic {
    fn named(word: Option<&str>) -> Self {
        match word {
            None => Self::Commands,
            Some("set" | "/set") => Self::Set,
            Some("show" | "/show") => Self::Show,
            Some("shortcut" | "shortcuts") => Self::Shortcuts,
            Some(_) => Self::Unknown,
        }
    }
}

fn show(item: Option<&str>) -> Command {
    Command::Show(match item {
        None => return Command::Help(Topic::Show),
        Some("info") => Item::Info,
        Some("license") => Item::License,
        Some("modelfile") => Item::Modelfile,
        Some("parameters") => Item::Parameters,
        Some("system") => Item::System,
        Some("template") => Item::Template,
        Some(other) => Item::Unknown(other.to_owned()),
    })
}

fn set(words: &[&str]) -> Command {
    let Some((&what, values)) = words.split_first() else {
        return Command::Help(Topic::Set);
    };
    Command::Set(match what {
        "history" => Setting::History(true),
        "nohistory" => Setting::History(false),
        "wordwrap" => Setting::WordWrap(true),
        "nowordwrap" => Setting::WordWrap(false),
        "verbose" => Setting::Verbose(true),
        "quiet" => Setting::Verbose(false),
        "think" => Setting::Think(values.first().map(|&level| level.to_owned())),
        "nothink" => Setting::NoThink,
        "format" => Setting::Format(values.first() == Some(&"json")),
        "noformat" => Setting::NoFormat,
        "parameter" => match values {
            [name, values @ ..] if !values.is_empty() => {
                let values = values.iter().map(|&v| v.to_owned()).collect();
                Setting::Parameter { name: (*name).to_owned(), values }
            }
            _ => return Command::Help(Topic::Parameters),
        },
        "system" if values.is_empty() => return Command::Help(Topic::Set),
        "system" => system(&values.join(" ")),
        other => Setting::Unknown(other.to_owned()),
    })
}

fn system(text: &str) -> Setting {
    match text.strip_prefix(QUOTES) {
        None => Setting::System(text.to_owned()),
        Some(rest) => match rest.strip_suffix(QUOTES) {
            Some(whole) => Setting::System(whole.to_owned()),
            None => Setting::SystemOpen(rest.to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Command {
        Command::parse(line).expect("a command")
    }

    fn setting(line: &str) -> Setting {
        match parse(line) {
            Command::Set(setting) => setting,
            other => panic!("{line} is {other:?}"),
        }
    }

    #[test]
    fn only_a_slash_at_the_very_start_makes_a_command() {
        assert_eq!(Command::parse("hello"), None);
        assert_eq!(Command::parse(" /bye"), None);
        assert_eq!(Command::parse(""), None);
        assert_eq!(parse("/"), Command::Unknown("/".into()));
        assert_eq!(parse("/nope x"), Command::Unknown("/nope".into()));
    }

    #[test]
    fn commands_are_recognised_by_the_start_of_the_line() {
        assert_eq!(parse("/loadx gemma3"), Command::Load(Some("gemma3".into())));
        assert_eq!(parse("/byebye"), Command::Leave);
        assert_eq!(parse("/exit now"), Command::Leave);
        assert_eq!(parse("/clearly"), Command::Clear);
        assert_eq!(parse("/list"), Command::List(None));
        assert_eq!(parse("/list gem"), Command::List(Some("gem".into())));
    }

    #[test]
    fn load_and_save_take_exactly_one_name() {
        assert_eq!(parse("/load"), Command::Load(None));
        assert_eq!(parse("/load a b"), Command::Load(None));
        assert_eq!(parse("/save  mine "), Command::Save(Some("mine".into())));
        assert_eq!(parse("/save"), Command::Save(None));
    }

    #[test]
    fn help_topics_are_recognised_with_and_without_a_slash() {
        assert_eq!(parse("/?"), Command::Help(Topic::Commands));
        assert_eq!(parse("/help set"), Command::Help(Topic::Set));
        assert_eq!(parse("/? /show"), Command::Help(Topic::Show));
        assert_eq!(parse("/? shortcuts"), Command::Help(Topic::Shortcuts));
        assert_eq!(parse("/? weather"), Command::Help(Topic::Unknown));
    }

    #[test]
    fn settings_without_arguments_print_usage() {
        assert_eq!(parse("/set"), Command::Help(Topic::Set));
        assert_eq!(parse("/set system"), Command::Help(Topic::Set));
        assert_eq!(parse("/set parameter"), Command::Help(Topic::Parameters));
        assert_eq!(parse("/set parameter seed"), Command::Help(Topic::Parameters));
        assert_eq!(setting("/set x"), Setting::Unknown("x".into()));
    }

    #[test]
    fn settings_carry_their_values() {
        assert_eq!(setting("/set nohistory"), Setting::History(false));
        assert_eq!(setting("/set think"), Setting::Think(None));
        assert_eq!(setting("/set think high"), Setting::Think(Some("high".into())));
        assert_eq!(setting("/set format json"), Setting::Format(true));
        assert_eq!(setting("/set format"), Setting::Format(false));
        assert_eq!(setting("/set format xml"), Setting::Format(false));
        let stop = Setting::Parameter { name: "stop".into(), values: vec!["a".into(), "b".into()] };
        assert_eq!(setting("/set parameter stop a b"), stop);
    }

    #[test]
    fn a_system_message_may_be_quoted_and_may_stay_open() {
        assert_eq!(setting("/set system be brief"), Setting::System("be brief".into()));
        assert_eq!(setting(r#"/set system """be brief""""#), Setting::System("be brief".into()));
        assert_eq!(setting(r#"/set system """be"#), Setting::SystemOpen("be".into()));
        // Without opening quotes, closing quotes are part of the text.
        assert_eq!(setting(r#"/set system be""""#), Setting::System(r#"be""""#.into()));
    }

    #[test]
    fn show_items_are_recognized() {
        assert_eq!(parse("/show"), Command::Help(Topic::Show));
        assert_eq!(parse("/show modelfile"), Command::Show(Item::Modelfile));
        assert_eq!(parse("/show x"), Command::Show(Item::Unknown("x".into())));
    }
}
