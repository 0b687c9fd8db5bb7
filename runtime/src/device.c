#include "device.h"

#include <string.h>

static int allocate(device_part *part, tvmflow_memory *memory, uint64_t size) {
  *memory = (tvmflow_memory){.size = (size_t)size};
  if (memory->size != size || part->driver.allocate(part->driver.context, memory) || !memory->data) {
    memory->data = NULL;
    return -1;
  }
  return 0;
}

static void flush(const device_part *part, const tvmflow_memory *memory, size_t offset, size_t size) {
  if (part->driver.flush && size) part->driver.flush(part->driver.context, memory, offset, size);
}

int device_load(device_part *part, const tvmflow_driver *driver, device_program *programs) {
  part->driver = *driver;
  part->programs = programs;
  for (uint32_t i = 0; i < plan.program_count; ++i) {
    const plan_program *program = &plan.programs[i];
    device_program *made = &programs[i];
    if (allocate(part, &made->memory, program->memory_size) || allocate(part, &made->code, program->code.size)) return -1;
    memset(made->memory.data, 0, made->memory.size);
    memcpy((char *)made->memory.data + program->image_at, plan.constants + program->image.offset, (size_t)program->image.size);
    memcpy(made->code.data, plan.constants + program->code.offset, (size_t)program->code.size);
    flush(part, &made->memory, 0, made->memory.size);
    flush(part, &made->code, 0, made->code.size);
  }
  return 0;
}

void device_unload(device_part *part) {
  for (uint32_t i = 0; part->programs && i < plan.program_count; ++i) {
    if (part->programs[i].memory.data) part->driver.release(part->driver.context, &part->programs[i].memory);
    if (part->programs[i].code.data) part->driver.release(part->driver.context, &part->programs[i].code);
  }
  part->programs = NULL;
}

static char *data_of(const plan_any *argument) { return ((const plan_tensor *)argument->value.pointer)->data; }

int device_run(device_part *part, uint32_t at, const plan_any *arguments) {
  const plan_program *program = &plan.programs[at];
  const device_program *mine = &part->programs[at];
  char *memory = mine->memory.data;
  for (uint32_t i = 0; i < program->input_count; ++i) {
    const plan_span *span = &program->spans[i];
    memcpy(memory + span->offset, data_of(&arguments[i]), (size_t)span->size);
    flush(part, &mine->memory, (size_t)span->offset, (size_t)span->size);
  }
  for (uint32_t i = 0; i < program->launch_count; ++i) {
    const plan_launch *launch = &program->launches[i];
    if (part->driver.launch(part->driver.context, &mine->code, (size_t)launch->offset, launch->count, &mine->memory)) return -1;
  }
  for (uint32_t i = program->input_count; i < program->input_count + program->output_count; ++i) {
    const plan_span *span = &program->spans[i];
    if (part->driver.invalidate) part->driver.invalidate(part->driver.context, &mine->memory, (size_t)span->offset, (size_t)span->size);
    memcpy(data_of(&arguments[i]), memory + span->offset, (size_t)span->size);
  }
  return 0;
}
