//! Usage texts of session commands.

use super::command::Topic;

/// Usage text of a topic; `None` if the topic has no text.
pub(super) fn text(topic: Topic, multimodal: bool) -> Option<String> {
    Some(match topic {
        Topic::Commands if multimodal => format!("{COMMANDS}\n{ATTACH}"),
        Topic::Commands => format!("{COMMANDS}\n"),
        Topic::Set => SET.to_owned(),
        Topic::Show => SHOW.to_owned(),
        Topic::Shortcuts => SHORTCUTS.to_owned(),
        Topic::Parameters => PARAMETERS.to_owned(),
        Topic::Unknown => return None,
    })
}

const COMMANDS: &str = r#"Available Commands:
  /set            Set session variables
  /show           Show model information
  /load <model>   Load a session or model
  /save <model>   Save your current session
  /clear          Clear session context
  /bye            Exit
  /?, /help       Help for a command
  /? shortcuts    Help for keyboard shortcuts

Use """ to begin a multi-line message.
"#;

const ATTACH: &str = "Use /path/to/file to include .jpg, .png, .webp images or .wav audio.

";

const SET: &str = "Available Commands:
  /set parameter ...     Set a parameter of the model
  /set system <string>   Set the system message
  /set history           Keep a history of your input
  /set nohistory         Do not keep a history
  /set wordwrap          Break lines between words
  /set nowordwrap        Do not break lines
  /set format json       Answer in JSON
  /set noformat          Answer in any format
  /set verbose           Show statistics after each answer
  /set quiet             Do not show statistics
  /set think [level]     Enable thinking before the answer
  /set nothink           Disable thinking

";

const SHOW: &str = "Available Commands:
  /show info         Show details of this model
  /show license      Show the model's license
  /show modelfile    Show the Modelfile of this model
  /show parameters   Show the parameters of this model
  /show system       Show the system message
  /show template     Show the prompt template

";

const SHORTCUTS: &str = "Available keyboard shortcuts:
  Ctrl + a            Move to the beginning of the line (Home)
  Ctrl + e            Move to the end of the line (End)
   Alt + b            Move back (left) one word
   Alt + f            Move forward (right) one word
  Ctrl + k            Delete the text after the cursor
  Ctrl + u            Delete the text before the cursor
  Ctrl + w            Delete the word before the cursor
  Ctrl + r            Search the history

  Ctrl + j            Insert a new line
  Ctrl + g            Edit the message in an external editor
  Ctrl + l            Clear the screen
  Ctrl + c            Stop the model from responding
  Ctrl + d            Exit (/bye)

";

const PARAMETERS: &str = "Available Parameters:
  /set parameter seed <int>             Random number seed
  /set parameter num_predict <int>      Maximum number of tokens to predict
  /set parameter top_k <int>            Pick from the top k tokens
  /set parameter top_p <float>          Pick from tokens with this total probability
  /set parameter min_p <float>          Drop tokens below this share of the best
  /set parameter num_ctx <int>          Set the context length
  /set parameter temperature <float>    Set how creative the answers are
  /set parameter repeat_penalty <float> How strongly to penalize repetitions
  /set parameter repeat_last_n <int>    How far back to look for repetitions
  /set parameter num_gpu <int>          The number of layers to send to the GPU
  /set parameter stop <string> ...      Strings that stop the answer

";
