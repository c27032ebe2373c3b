// The header that a training program includes. In reading order: run.h (ranks and options), text.h
// (data), model.h (model, optimizer, checkpoints), and nn/layers/ for custom models.
//
//   int main(int argc, char** argv) {
//     return shoal::run(argc, argv, {}, [](shoal::Job& job) {
//       const shoal::Text text(job, "corpus.txt", "tokenizer");
//       shoal::Model model(job, shoal::causal_lm("gpt2", "n_layer=4", text.tokenizer()));
//       shoal::Optimizer optimizer(model);
//       shoal::Batches batches(model, text.blocks());
//       for (int step = 0; step < 100; ++step) {
//         job.print("step {}  loss {:.3f}\n", step, model.train(batches.next()));
//         optimizer.step(1e-3);
//       }
//     });
//   }
#pragma once

#include "shoal/model.h"
#include "shoal/nn/layers/layers.h"
#include "shoal/nn/layers/sequential.h"
#include "shoal/run.h"
#include "shoal/text.h"
