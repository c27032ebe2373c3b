// The header that a training program includes. In reading order: run.h (ranks and options), text.h
// (data), model.h (model, optimizer, checkpoints), and nn/layers/ for custom models.
#pragma once

#include "shoal/model.h"
#include "shoal/nn/layers/layers.h"
#include "shoal/nn/layers/sequential.h"
#include "shoal/run.h"
#include "shoal/text.h"
