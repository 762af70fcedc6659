/* Models through the C API: a version is added and brought into the pool, its files go into memory,
 * one rank's slices of its tensors into a callback. docs/C_API.md quotes what is between the marks.
 *
 *   model_load CONTROLLER FOLDER MODEL@VERSION
 *
 * FOLDER is below the servers' models.file_root and holds *.safetensors.
 */
#include <stdio.h>
#include <stdlib.h>

#include "ems.h"

#define RANK 1
#define RANKS 2

static int complain(const char* what) {
  fprintf(stderr, "%s: %s\n", what, ems_last_error());
  return 1;
}

/* [version] */
static int show(void* user, const ems_model_progress* at) {
  (void)user;
  fprintf(stderr, "%llu of %llu bytes\n", (unsigned long long)at->bytes_done,
          (unsigned long long)at->bytes);
  return 0; /* not 0: do not wait any longer */
}

/* Makes a version of what the folder has now, and brings it into the servers' memory. */
static int prefetch(ems_models* models, const char* name, const char* folder) {
  if (ems_models_add(models, name, folder, NULL, 0, NULL)) return complain("add");
  if (ems_models_prefetch(models, name, 0, 0, NULL)) return complain("prefetch");
  return ems_models_wait(models, name, 0, show, NULL, NULL) ? complain("wait") : 0;
}
/* [version] */

/* [tensors] */
struct rank {
  uint32_t rank, ranks;
  uint64_t tensors, bytes;
};

static ems_status choose(void* user, const ems_model_tensor* tensor, ems_model_slice* slice) {
  const struct rank* mine = user;
  if (tensor->dimensions < 2) return EMS_OK; /* whole */
  slice->axis = 0;
  slice->rank = mine->rank;
  slice->ranks = mine->ranks;
  return EMS_OK; /* EMS_NOT_FOUND: not this one */
}

static ems_status take(void* user, const ems_model_tensor* tensor) {
  struct rank* mine = user;
  mine->tensors += 1;
  mine->bytes += tensor->bytes; /* tensor->data: copy it to where it is needed */
  return EMS_OK;                /* another code ends the load */
}

static ems_status load_rank(ems_models* models, const char* name, struct rank* mine) {
  ems_model_tensors tensors;
  ems_model_load_options options;
  ems_model_tensors_init(&tensors, sizeof(tensors));
  tensors.choose = choose;
  tensors.on_tensor = take;
  tensors.user = mine;
  ems_model_load_options_init(&options, sizeof(options));
  options.timeout_ms = 60 * 1000;
  return ems_models_load_tensors(models, name, &tensors, &options, NULL);
}
/* [tensors] */

static ems_status room(void* user, const char* path, uint64_t bytes, void** memory) {
  (void)path;
  *memory = malloc((size_t)bytes);
  if (*memory == NULL) return EMS_RESOURCE_EXHAUSTED;
  *(void**)user = *memory;
  return EMS_OK;
}

int main(int argc, char** argv) {
  ems_models_options options;
  ems_models* models;
  ems_model_load_options one_file;
  ems_model_stats stats;
  const char* path = "model.safetensors";
  void* memory = NULL;
  struct rank mine = {RANK, RANKS, 0, 0};
  if (argc != 4) {
    fprintf(stderr, "usage: model_load CONTROLLER FOLDER MODEL@VERSION\n");
    return 2;
  }
  ems_models_options_init(&options, sizeof(options));
  options.controller = argv[1];
  if (ems_models_create(&options, &models)) return complain("create");
  if (prefetch(models, argv[3], argv[2])) return 1;
  ems_model_load_options_init(&one_file, sizeof(one_file));
  one_file.files = &path;
  one_file.file_count = 1;
  if (ems_models_load_rooms(models, argv[3], room, &memory, &one_file, &stats)) {
    return complain("load");
  }
  printf("%llu bytes of %s\n", (unsigned long long)stats.bytes, path);
  if (load_rank(models, argv[3], &mine)) return complain("tensors");
  printf("%llu tensors of rank %u, %llu bytes\n", (unsigned long long)mine.tensors, mine.rank,
         (unsigned long long)mine.bytes);
  free(memory);
  ems_models_destroy(models);
  return 0;
}
