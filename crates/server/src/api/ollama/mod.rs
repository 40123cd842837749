//! Ollama's API: conversion of requests, and encoders of answers.

mod answer;
mod request;

pub(crate) use answer::{ChatEncoder, GenerateEncoder, push_line};
pub(crate) use request::{convert_chat, convert_generate};
