// Tokenizes text with llama.cpp, for oracle/llama.py:
//   cc -O1 llama.c -I$L/include -I$L/ggml/include -L$L/build/bin -lllama -lggml -lggml-base -Wl,-rpath,$L/build/bin -o llama
// L is a built checkout of llama.cpp. `llama VOCABULARY.gguf` reads records "FLAGS LENGTH\n" and LENGTH bytes of text,
// and writes a line of ids for each. FLAGS: 1 adds special tokens, 2 parses them in the text.

#include "llama.h"

#include <stdio.h>
#include <stdlib.h>

static void quiet(enum ggml_log_level level, const char *text, void *data) {
    (void) level;
    (void) text;
    (void) data;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        return 2;
    }
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    struct llama_model *model = llama_model_load_from_file(argv[1], params);
    if (model == NULL) {
        fprintf(stderr, "%s does not load\n", argv[1]);
        return 1;
    }
    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    int flags;
    int length;
    while (scanf("%d %d", &flags, &length) == 2) {
        getchar();
        char *text = malloc((size_t) length + 1);
        int room = length * 4 + 16;
        llama_token *ids = malloc(sizeof *ids * (size_t) room);
        if (fread(text, 1, (size_t) length, stdin) != (size_t) length) {
            return 1;
        }
        int count = llama_tokenize(vocab, text, length, ids, room, flags & 1, (flags & 2) != 0);
        for (int i = 0; i < count; i++) {
            printf("%d ", ids[i]);
        }
        printf("\n");
        free(ids);
        free(text);
    }
    return 0;
}
