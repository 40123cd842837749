//! Body of the Modelfile fuzz target.

use puna_store::{Instruction, Modelfile, parse_parameter};

/// Parses `data` as a Modelfile. A valid file must be equal after writing and parsing it again.
pub fn run(data: &[u8]) {
    let file = match Modelfile::parse_bytes(data) {
        Ok(file) => file,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    for instruction in &file.instructions {
        if let Instruction::Parameter { name, value } = instruction {
            let _ = parse_parameter(name, &[value]);
        }
    }
    let written = file.to_string();
    assert!(written.len() <= 16 * data.len() + 64, "{} bytes became {}", data.len(), written.len());
    // The Modelfile syntax cannot express a text with three quotes in every position.
    if file.instructions.iter().any(|instruction| text(instruction).contains("\"\"\"")) {
        return;
    }
    assert_eq!(Modelfile::parse(&written).as_ref(), Ok(&file), "{written}");
}

/// Text of an instruction.
fn text(instruction: &Instruction) -> &str {
    match instruction {
        Instruction::From(text)
        | Instruction::License(text)
        | Instruction::Template(text)
        | Instruction::System(text)
        | Instruction::Adapter(text)
        | Instruction::Draft(text)
        | Instruction::Renderer(text)
        | Instruction::Parser(text)
        | Instruction::Requires(text)
        | Instruction::Parameter { value: text, .. }
        | Instruction::Message { content: text, .. } => text,
    }
}
