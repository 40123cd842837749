//! Rules for the messages that a template accepts.

/// Messages that a template accepts: it renders them without error and writes their texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageRules {
    /// A leading system message.
    pub(crate) system: bool,
    /// The template writes a leading system message behind other messages.
    pub(crate) moves_system: bool,
    /// Several leading system messages.
    pub(crate) several_systems: bool,
    /// Handling of a system message behind other messages.
    pub(crate) late_system: LateSystem,
    /// The role `developer` at any position.
    pub(crate) developer: bool,
    /// Two consecutive user messages.
    pub(crate) consecutive_users: bool,
    /// Two consecutive assistant messages.
    pub(crate) consecutive_assistants: bool,
    /// An assistant message as the first one.
    pub(crate) leading_assistant: bool,
    /// A conversation without user message.
    pub(crate) no_user: bool,
    /// Tool calls of the assistant.
    pub(crate) calls: bool,
    /// Tool results, also several in a row.
    pub(crate) results: bool,
    /// A message with text and calls, with and without following results.
    pub(crate) text_with_calls: bool,
    /// Several calls in one message.
    pub(crate) parallel_calls: bool,
    /// Results that do not directly follow their call.
    pub(crate) separated_results: bool,
    /// Assistant messages without text.
    pub(crate) empty_answers: bool,
}

/// How a template handles a system message behind other messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LateSystem {
    /// The template writes it at its position.
    InPlace,
    /// The template refuses it, drops it, or writes it at the start, where it would invalidate the
    /// prefix cache.
    NotInPlace,
}

impl MessageRules {
    /// Rules with which only the order of results is adapted.
    pub(super) fn permissive() -> Self {
        Self {
            system: true,
            moves_system: false,
            several_systems: true,
            late_system: LateSystem::InPlace,
            developer: true,
            consecutive_users: true,
            consecutive_assistants: true,
            leading_assistant: true,
            no_user: true,
            calls: true,
            results: true,
            text_with_calls: true,
            parallel_calls: true,
            separated_results: true,
            empty_answers: true,
        }
    }

    /// Rules for an unknown template, such as that of a remote server. It accepts system messages,
    /// calls, results, a leading assistant message and conversations without user message.
    /// Otherwise roles must alternate.
    pub fn conservative() -> Self {
        let base = Self { system: true, calls: true, results: true, ..Self::alternating_only() };
        Self { leading_assistant: true, no_user: true, ..base }
    }

    /// Rules of a template that accepts only alternating user and assistant messages.
    fn alternating_only() -> Self {
        Self {
            system: false,
            moves_system: false,
            several_systems: false,
            late_system: LateSystem::NotInPlace,
            developer: false,
            consecutive_users: false,
            consecutive_assistants: false,
            leading_assistant: false,
            no_user: false,
            calls: false,
            results: false,
            text_with_calls: true,
            parallel_calls: true,
            separated_results: false,
            empty_answers: false,
        }
    }

    /// Stricter rules to try, in this order, if the template refuses a conversation that follows
    /// these rules.
    pub(crate) fn stricter(self) -> [Self; 4] {
        let turns = Self::alternating_only();
        let merged = Self {
            system: self.system,
            moves_system: self.moves_system,
            calls: self.calls,
            results: self.results,
            developer: self.developer,
            text_with_calls: self.text_with_calls,
            parallel_calls: self.parallel_calls,
            ..turns
        };
        let without_results = Self { results: false, ..merged };
        let with_system = Self { system: self.system, moves_system: self.moves_system, ..turns };
        [merged, without_results, with_system, turns]
    }
}
