// See cudnn_graph.h.
#pragma once

#include "cudnn_graph.h"
