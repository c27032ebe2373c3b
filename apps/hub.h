// Downloads models from Hugging Face's Hub, or a mirror of it.
#pragma once

#include <string>

namespace shoal::app {

// Downloads the model into Hugging Face's cache and returns its directory there, whose layout
// `huggingface_hub` reads too. HF_ENDPOINT names a mirror. HF_TOKEN is sent to it, and to no host
// that it redirects to. Builds without an HTTP client throw unavailable.
//
// Gets config.json, the tokenizer's files and model*.safetensors of the main revision. A file that
// was cut is continued, also in a later call. Each file is compared with the Hub's hash before it
// gets its name. Ranks of a host wait for the one that downloads. Throws not_found if the Hub has
// no such model, corrupt_data for a wrong hash, io otherwise.
std::string fetch_model(const std::string& name);

}  // namespace shoal::app
