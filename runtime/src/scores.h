/* Class scores: conversion to floats and probabilities, top k. */
#ifndef TVMFLOW_SCORES_H
#define TVMFLOW_SCORES_H

#include "plan.h"

/* Convert an output of floats of any width to float; return nonzero for other dtypes. */
int scores_read(const tvmflow_tensor *tensor, const void *from, float *to, uint32_t count);
/* Write the probabilities of k classes: their scores if these are probabilities, else their softmax. */
void scores_to_probabilities(const float *scores, uint32_t count, const uint32_t *indices, uint32_t k, float *probabilities);

#endif
