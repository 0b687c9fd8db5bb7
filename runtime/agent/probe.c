/* Read facts from /proc, /sys and the loader; unknown ones are omitted, and nothing fails. */
#define _GNU_SOURCE
#include "probe.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#define MOST_CPUS 64
#define MOST_ZONES 100
#define LINE 4096

/* Return the first line of a file below root, without its newline; NULL if there is none. */
static const char *line_of(const char *root, const char *path, char line[LINE]) {
  char whole[LINE];
  snprintf(whole, sizeof whole, "%s%s", root, path);
  int file = open(whole, O_RDONLY | O_CLOEXEC);
  ssize_t count = file >= 0 ? read(file, line, LINE - 1) : -1;
  if (file >= 0) close(file);
  if (count <= 0) return NULL;
  line[count] = 0;
  line[strcspn(line, "\n")] = 0;
  return line;
}

static void add_number(text *reply, const char *root, const char *path, const char *key) {
  char line[LINE], *end;
  const char *found = line_of(root, path, line);
  long long number = found ? strtoll(found, &end, 10) : 0;
  if (found && end != found) text_add(reply, ",\"%s\":%lld", key, number);
}

static void add_line(text *reply, const char *root, const char *path, const char *key) {
  char line[LINE];
  const char *found = line_of(root, path, line);
  if (!found) return;
  text_add(reply, ",\"%s\":", key);
  text_add_string(reply, found);
}

static void add_cores(text *reply, const char *root) {
  char path[128], line[LINE];
  int count = 0;
  text_add(reply, ",\"cores\":[");
  for (int cpu = 0; cpu < MOST_CPUS; ++cpu) {
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/core_id", cpu);
    if (!line_of(root, path, line)) continue;
    text_add(reply, "%s{\"cpu\":%d", count++ ? "," : "", cpu);
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpufreq/cpuinfo_max_freq", cpu);
    add_number(reply, root, path, "max_khz");
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpu_capacity", cpu);
    add_number(reply, root, path, "capacity");
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/regs/identification/midr_el1", cpu);
    add_line(reply, root, path, "midr");
    text_add(reply, "}");
  }
  text_add(reply, "],\"online\":%ld", sysconf(_SC_NPROCESSORS_ONLN));
}

/* Add the features of the first core and the processor's name. */
static void add_features(text *reply, const char *root) {
  static const char *const KEYS[][2] = {{"flags", "features"}, {"Features", "features"}, {"model name", "model"}, {"Hardware", "hardware"}};
  char path[LINE], line[LINE];
  int said[4] = {0};
  snprintf(path, sizeof path, "%s/proc/cpuinfo", root);
  FILE *file = fopen(path, "re");
  while (file && fgets(line, sizeof line, file)) {
    char *colon = strchr(line, ':');
    if (!colon) continue;
    for (int i = 0; i < 4; ++i) {
      size_t size = strlen(KEYS[i][0]);
      if (said[i] || strncmp(line, KEYS[i][0], size) || !strchr("\t :", line[size])) continue;
      said[i] = 1;
      colon[strcspn(colon, "\n")] = 0;
      text_add(reply, ",\"%s\":", KEYS[i][1]);
      text_add_string(reply, colon[1] == ' ' ? colon + 2 : colon + 1);
    }
  }
  if (file) fclose(file);
  text_add(reply, ",\"hwcap\":%lu,\"hwcap2\":%lu", getauxval(AT_HWCAP), getauxval(AT_HWCAP2));
}

void probe_temperatures(text *reply, const char *root) {
  char path[128], line[LINE], name[LINE];
  int count = 0;
  text_add(reply, ",\"temperatures\":[");
  for (int zone = 0; zone < MOST_ZONES; ++zone) {
    snprintf(path, sizeof path, "/sys/class/thermal/thermal_zone%d/type", zone);
    if (!line_of(root, path, name)) break;
    snprintf(path, sizeof path, "/sys/class/thermal/thermal_zone%d/temp", zone);
    const char *found = line_of(root, path, line);
    if (!found) continue;
    text_add(reply, "%s{\"zone\":", count++ ? "," : "");
    text_add_string(reply, name);
    text_add(reply, ",\"millidegrees\":%lld}", strtoll(found, NULL, 10));
  }
  text_add(reply, "]");
}

static void add_battery(text *reply, const char *root) {
  static const char *const FOLDERS[] = {"battery", "BAT0", "BAT1"};
  char path[128], line[LINE];
  for (int i = 0; i < 3; ++i) {
    snprintf(path, sizeof path, "/sys/class/power_supply/%s/capacity", FOLDERS[i]);
    if (!line_of(root, path, line)) continue;
    text_add(reply, ",\"battery\":{\"name\":\"%s\"", FOLDERS[i]);
    add_number(reply, root, path, "percent");
    snprintf(path, sizeof path, "/sys/class/power_supply/%s/status", FOLDERS[i]);
    add_line(reply, root, path, "status");
    snprintf(path, sizeof path, "/sys/class/power_supply/%s/temp", FOLDERS[i]);
    add_number(reply, root, path, "decidegrees");
    text_add(reply, "}");
    return;
  }
}

static void add_memory(text *reply, const char *root, const store *files) {
  char path[LINE], line[256];
  unsigned long kb;
  struct statvfs disk;
  snprintf(path, sizeof path, "%s/proc/meminfo", root);
  FILE *file = fopen(path, "re");
  while (file && fgets(line, sizeof line, file)) {
    if (sscanf(line, "MemTotal: %lu kB", &kb) == 1) text_add(reply, ",\"memory_bytes\":%llu", (unsigned long long)kb * 1024);
    if (sscanf(line, "MemAvailable: %lu kB", &kb) == 1) text_add(reply, ",\"memory_free_bytes\":%llu", (unsigned long long)kb * 1024);
  }
  if (file) fclose(file);
  if (!fstatvfs(files->folder, &disk)) text_add(reply, ",\"disk_free_bytes\":%llu", (unsigned long long)disk.f_bavail * disk.f_frsize);
}

static void add_libraries(text *reply) {
  static const char *const PATHS[] = {
      "/vendor/lib64/libOpenCL.so", "/system/vendor/lib64/libOpenCL.so", "/system/lib64/libOpenCL.so", "/vendor/lib64/egl/libGLES_mali.so",
      "/vendor/lib/libOpenCL.so", "/system/lib64/libvulkan.so", "/system/lib/libvulkan.so", "/usr/lib/aarch64-linux-gnu/libOpenCL.so.1",
      "/usr/lib/aarch64-linux-gnu/libvulkan.so.1", "/usr/lib/x86_64-linux-gnu/libOpenCL.so.1", "/usr/lib/x86_64-linux-gnu/libvulkan.so.1"};
  int count = 0;
  text_add(reply, ",\"gpu_libraries\":[");
  for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS; ++i) {
    if (access(PATHS[i], R_OK)) continue;
    text_add(reply, "%s", count++ ? "," : "");
    text_add_string(reply, PATHS[i]);
  }
  text_add(reply, "]");
}

/* Add Android's build fingerprint; on other systems the name of the system. */
static void add_build(text *reply, const char *root) {
  char value[LINE] = "", path[LINE], line[512];
  int (*property)(const char *, char *);
  *(void **)&property = dlsym(RTLD_DEFAULT, "__system_property_get");
  if (property) property("ro.build.fingerprint", value);
  snprintf(path, sizeof path, "%s/etc/os-release", root);
  FILE *file = value[0] ? NULL : fopen(path, "re");
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "PRETTY_NAME=\"%255[^\"]\"", value) == 1) break;
  if (file) fclose(file);
  if (!value[0]) return;
  text_add(reply, ",\"build\":");
  text_add_string(reply, value);
}

/* Add the identity of this device: its given name, or a digest of its serial number. Boards of one image share a machine-id,
 * so the hardware's number comes first, if it is valid. */
static void add_unit(text *reply, const char *root, const char *unit) {
  static const char *const PATHS[] = {"/proc/device-tree/serial-number", "/sys/devices/soc0/serial_number", "/etc/machine-id"};
  char line[LINE];
  unsigned char digest[SHA256_SIZE];
  const char *found = NULL;
  if (unit) {
    text_add(reply, ",\"unit\":");
    text_add_string(reply, unit);
    return;
  }
  for (int i = 0; i < 3 && !found; ++i) {
    found = line_of(root, PATHS[i], line);
    if (found && !found[strspn(found, "0")]) found = NULL; /* empty or all zeros */
  }
  if (!found) return;
  sha256 sum;
  sha256_begin(&sum);
  sha256_add(&sum, found, strlen(found));
  sha256_end(&sum, digest);
  text_add(reply, ",\"unit\":\"host-");
  for (int i = 0; i < 6; ++i) text_add(reply, "%02x", digest[i]);
  text_add(reply, "\"");
}

void probe(text *reply, const char *root, const char *unit, const store *files) {
  struct utsname system;
  text_add(reply, ",\"version\":%d", AGENT_VERSION);
  if (!uname(&system)) {
    text_add(reply, ",\"machine\":");
    text_add_string(reply, system.machine);
    text_add(reply, ",\"kernel\":");
    text_add_string(reply, system.release);
  }
  add_build(reply, root);
  add_unit(reply, root, unit);
  add_cores(reply, root);
  add_features(reply, root);
  probe_temperatures(reply, root);
  add_battery(reply, root);
  add_memory(reply, root, files);
  add_libraries(reply);
}
