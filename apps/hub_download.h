// The Hub's protocol (huggingface.co/docs/hub/api), as fetch_model() uses it.
#pragma once

#include <cstdint>
#include <string>

#include "shoal/sagemaker/rest/client.h"

namespace shoal::app {

struct HubOptions {
  std::string endpoint = "https://huggingface.co";
  sagemaker::Secret token = {};                      // empty: only public models
  std::string folder;                                // the model's in the cache: models--ORG--NAME
  std::int64_t piece_bytes = std::int64_t{8} << 20;  // of a request
  sagemaker::RetryOptions retry = {.attempts = 6};
};

// Downloads the model's main revision and returns its directory in the folder.
std::string download_model(const std::string& name, const HubOptions& options);

}  // namespace shoal::app
