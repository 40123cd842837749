//! List of the coding agents that Puna can start.

use super::agent::Agent;
use super::claude::ClaudeCode;
use super::codex::Codex;
use super::opencode::Opencode;
use super::pi::Pi;
use super::qwen::QwenCode;

/// All agents.
pub const AGENTS: [&dyn Agent; 5] = [&ClaudeCode, &Codex, &Opencode, &QwenCode, &Pi];

/// Finds an agent by name.
pub fn agent(name: &str) -> Option<&'static dyn Agent> {
    AGENTS.into_iter().find(|agent| agent.name() == name)
}
