//! What the fuzzer does with every input: it is a Modelfile.

use puna_store::{Instruction, Modelfile, parse_parameter};

/// Reads `data` as a Modelfile: one that is read can be written, and is the same then.
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
    // Three quotes within a text have no form in the language that holds everywhere.
    if file.instructions.iter().any(|instruction| text(instruction).contains("\"\"\"")) {
        return;
    }
    assert_eq!(Modelfile::parse(&written).as_ref(), Ok(&file), "{written}");
}

/// What an instruction says.
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
