// SPDX-License-Identifier: GPL-2.0
/*
 * Lab only. vGPUs as a vendor's driver has them on older kernels: mediated devices of a card. The card that makes them is
 * named by its address, at load or later; none by an empty line, and then all that it has made go.
 *
 *   /sys/module/labnv/parameters/mediated
 *
 * Its types have NVIDIA's names and descriptions. One size stands on the card at a time, and no more of it than the card
 * has memory for. Each device is a PCI display card of NVIDIA's without interrupts, whose one BAR is memory.
 */
#include <linux/device.h>
#include <linux/mdev.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/vfio.h>
#include <linux/vfio_pci_core.h>
#include <linux/vmalloc.h>

#include "vf.h"

#define CARD_GB 48
#define BAR_SIZE (2 << 20)
#define CONFIG_SIZE 256

struct kind {
	struct mdev_type type;
	unsigned int gb;
};

static struct kind kinds[] = {
	{ { .sysfs_name = "563", .pretty_name = "NVIDIA A40-12Q" }, 12 },
	{ { .sysfs_name = "565", .pretty_name = "NVIDIA A40-24Q" }, 24 },
	{ { .sysfs_name = "566", .pretty_name = "NVIDIA A40-48Q" }, 48 },
	{ { .sysfs_name = "577", .pretty_name = "NVIDIA A40-12C" }, 12 },
};

static struct mdev_type *types[ARRAY_SIZE(kinds)];

struct labmdev {
	struct vfio_device vdev;
	struct list_head others;
	unsigned int gb;
	struct mutex lock;
	u8 config[CONFIG_SIZE];
	u8 *memory;
};

static LIST_HEAD(devices);
static DEFINE_MUTEX(devices_lock);

static unsigned int gb_of(struct mdev_type *type)
{
	return container_of(type, struct kind, type)->gb;
}

/* With devices_lock. One size for the card, and no more than it has. */
static unsigned int room_for(unsigned int gb)
{
	unsigned int used = 0;
	struct labmdev *other;

	list_for_each_entry(other, &devices, others) {
		if (other->gb != gb)
			return 0;
		used += other->gb;
	}
	return (CARD_GB - used) / gb;
}

static unsigned int labmdev_available(struct mdev_type *type)
{
	unsigned int room;

	mutex_lock(&devices_lock);
	room = room_for(gb_of(type));
	mutex_unlock(&devices_lock);
	return room;
}

static ssize_t labmdev_description(struct mdev_type *type, char *out)
{
	unsigned int gb = gb_of(type);

	return sysfs_emit(out, "num_heads=4, frl_config=60, framebuffer=%uM, max_resolution=7680x4320, max_instance=%u\n",
			  gb << 10, CARD_GB / gb);
}

/* What a guest may change of the config space: whether its memory answers, and where. */
static u8 writable(size_t at)
{
	const u32 bar = ~(u32)(BAR_SIZE - 1);

	if (at == PCI_COMMAND)
		return PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER;
	if (at >= PCI_BASE_ADDRESS_0 && at < PCI_BASE_ADDRESS_1)
		return bar >> (8 * (at - PCI_BASE_ADDRESS_0));
	return 0;
}

static void put16(u8 *config, size_t at, u16 value)
{
	config[at] = value;
	config[at + 1] = value >> 8;
}

static void fill_config(u8 *config)
{
	put16(config, PCI_VENDOR_ID, PCI_VENDOR_ID_NVIDIA);
	put16(config, PCI_DEVICE_ID, 0x2235);
	put16(config, PCI_SUBSYSTEM_VENDOR_ID, PCI_VENDOR_ID_NVIDIA);
	put16(config, PCI_SUBSYSTEM_ID, 0x1459);
	put16(config, PCI_CLASS_DEVICE, PCI_CLASS_DISPLAY_3D);
}

/* What a region is backed by; NULL for one that is empty. */
static u8 *region(struct labmdev *device, unsigned int index, size_t *size)
{
	switch (index) {
	case VFIO_PCI_CONFIG_REGION_INDEX:
		*size = CONFIG_SIZE;
		return device->config;
	case VFIO_PCI_BAR0_REGION_INDEX:
		*size = BAR_SIZE;
		return device->memory;
	default:
		*size = 0;
		return NULL;
	}
}

static ssize_t labmdev_read(struct vfio_device *vdev, char __user *buffer, size_t count, loff_t *where)
{
	struct labmdev *device = container_of(vdev, struct labmdev, vdev);
	loff_t at = *where & VFIO_PCI_OFFSET_MASK;
	size_t size;
	u8 *from = region(device, VFIO_PCI_OFFSET_TO_INDEX(*where), &size);
	ssize_t result;

	if (!from || at >= size)
		return -EINVAL;
	count = min_t(size_t, count, size - at);
	mutex_lock(&device->lock);
	result = copy_to_user(buffer, from + at, count) ? -EFAULT : count;
	mutex_unlock(&device->lock);
	if (result > 0)
		*where += result;
	return result;
}

static ssize_t labmdev_write(struct vfio_device *vdev, const char __user *buffer, size_t count, loff_t *where)
{
	struct labmdev *device = container_of(vdev, struct labmdev, vdev);
	loff_t at = *where & VFIO_PCI_OFFSET_MASK;
	size_t size, i;
	u8 *to = region(device, VFIO_PCI_OFFSET_TO_INDEX(*where), &size);
	u8 wanted[CONFIG_SIZE];
	ssize_t result = 0;

	if (!to || at >= size)
		return -EINVAL;
	count = min_t(size_t, count, size - at);
	if (to != device->config) {
		mutex_lock(&device->lock);
		result = copy_from_user(to + at, buffer, count) ? -EFAULT : count;
		mutex_unlock(&device->lock);
	} else if (copy_from_user(wanted, buffer, count)) {
		result = -EFAULT;
	} else {
		mutex_lock(&device->lock);
		for (i = 0; i < count; i++)
			to[at + i] = (to[at + i] & ~writable(at + i)) | (wanted[i] & writable(at + i));
		mutex_unlock(&device->lock);
		result = count;
	}
	if (result > 0)
		*where += result;
	return result;
}

static long labmdev_ioctl(struct vfio_device *vdev, unsigned int command, unsigned long argument)
{
	struct labmdev *device = container_of(vdev, struct labmdev, vdev);
	void __user *user = (void __user *)argument;
	struct vfio_device_info info;
	struct vfio_region_info where;
	struct vfio_irq_info irq;
	size_t size;

	switch (command) {
	case VFIO_DEVICE_GET_INFO:
		if (copy_from_user(&info, user, offsetofend(struct vfio_device_info, num_irqs)))
			return -EFAULT;
		info.flags = VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET;
		info.num_regions = VFIO_PCI_NUM_REGIONS;
		info.num_irqs = VFIO_PCI_NUM_IRQS;
		return copy_to_user(user, &info, offsetofend(struct vfio_device_info, num_irqs)) ? -EFAULT : 0;
	case VFIO_DEVICE_GET_REGION_INFO:
		if (copy_from_user(&where, user, sizeof(where)))
			return -EFAULT;
		if (where.index >= VFIO_PCI_NUM_REGIONS)
			return -EINVAL;
		where.flags = region(device, where.index, &size) ? VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE : 0;
		where.size = size;
		where.offset = VFIO_PCI_INDEX_TO_OFFSET(where.index);
		where.cap_offset = 0;
		return copy_to_user(user, &where, sizeof(where)) ? -EFAULT : 0;
	case VFIO_DEVICE_GET_IRQ_INFO:
		if (copy_from_user(&irq, user, sizeof(irq)))
			return -EFAULT;
		if (irq.index >= VFIO_PCI_NUM_IRQS)
			return -EINVAL;
		irq.flags = 0;
		irq.count = 0;
		return copy_to_user(user, &irq, sizeof(irq)) ? -EFAULT : 0;
	case VFIO_DEVICE_RESET:
		mutex_lock(&device->lock);
		put16(device->config, PCI_COMMAND, 0);
		mutex_unlock(&device->lock);
		return 0;
	default:
		return -ENOTTY;
	}
}

static int labmdev_init_device(struct vfio_device *vdev)
{
	struct labmdev *device = container_of(vdev, struct labmdev, vdev);

	mutex_init(&device->lock);
	INIT_LIST_HEAD(&device->others);
	device->memory = vzalloc(BAR_SIZE);
	if (!device->memory)
		return -ENOMEM;
	fill_config(device->config);
	return 0;
}

static void labmdev_release_device(struct vfio_device *vdev)
{
	vfree(container_of(vdev, struct labmdev, vdev)->memory);
}

static const struct vfio_device_ops labmdev_ops = {
	.name = "labmdev",
	.init = labmdev_init_device,
	.release = labmdev_release_device,
	.read = labmdev_read,
	.write = labmdev_write,
	.ioctl = labmdev_ioctl,
	.bind_iommufd = vfio_iommufd_emulated_bind,
	.unbind_iommufd = vfio_iommufd_emulated_unbind,
	.attach_ioas = vfio_iommufd_emulated_attach_ioas,
	.detach_ioas = vfio_iommufd_emulated_detach_ioas,
};

static void forget(struct labmdev *device)
{
	mutex_lock(&devices_lock);
	list_del_init(&device->others);
	mutex_unlock(&devices_lock);
}

static int labmdev_probe(struct mdev_device *mdev)
{
	struct labmdev *device = vfio_alloc_device(labmdev, vdev, &mdev->dev, &labmdev_ops);
	int result = 0;

	if (IS_ERR(device))
		return PTR_ERR(device);
	device->gb = gb_of(mdev->type);
	mutex_lock(&devices_lock);
	if (room_for(device->gb))
		list_add_tail(&device->others, &devices);
	else
		result = -ENOSPC;
	mutex_unlock(&devices_lock);
	if (result)
		goto put;
	dev_set_drvdata(&mdev->dev, device);
	result = vfio_register_emulated_iommu_dev(&device->vdev);
	if (!result)
		return 0;
	forget(device);
put:
	vfio_put_device(&device->vdev);
	return result;
}

static void labmdev_remove(struct mdev_device *mdev)
{
	struct labmdev *device = dev_get_drvdata(&mdev->dev);

	/* Does not return while somebody has it open. */
	vfio_unregister_group_dev(&device->vdev);
	forget(device);
	vfio_put_device(&device->vdev);
}

static struct mdev_driver labmdev_driver = {
	.device_api = VFIO_DEVICE_API_PCI_STRING,
	.driver = { .name = "labmdev", .owner = THIS_MODULE, .mod_name = KBUILD_MODNAME },
	.probe = labmdev_probe,
	.remove = labmdev_remove,
	.get_available = labmdev_available,
	.show_description = labmdev_description,
};

/* --- which card makes them ------------------------------------------------------------------------------------------- */

static char mediated[32];
static struct mdev_parent parent;
/* Changed with the card's own lock in hand; the other is for those who look for it. */
static struct pci_dev *parent_card;
static DEFINE_MUTEX(parent_lock);
static bool is_ready;

/* With the card's lock, as both of what follows. */
void labmdev_card_came(struct pci_dev *card)
{
	int result;
	size_t i;

	if (!is_ready || parent_card || strcmp(pci_name(card), mediated))
		return;
	/* Of the last time; their names are freed, and would be again. */
	for (i = 0; i < ARRAY_SIZE(kinds); i++)
		memset(&kinds[i].type.kobj, 0, sizeof(kinds[i].type.kobj));
	result = mdev_register_parent(&parent, &card->dev, &labmdev_driver, types, ARRAY_SIZE(types));
	if (result)
		pci_err(card, "it makes no mediated devices (%d)\n", result);
	else
		parent_card = card;
}

void labmdev_card_goes(struct pci_dev *card)
{
	if (parent_card != card)
		return;
	mdev_unregister_parent(&parent);
	parent_card = NULL;
}

static struct pci_dev *card_called(const char *name)
{
	struct pci_dev *card = NULL;

	while ((card = pci_get_device(PCI_ANY_ID, PCI_ANY_ID, card)))
		if (!strcmp(pci_name(card), name))
			break;
	return card;
}

static int set_mediated(const char *value, const struct kernel_param *param)
{
	char line[sizeof(mediated)];
	struct pci_dev *card;

	mutex_lock(&parent_lock);
	card = is_ready ? card_called(mediated) : NULL;
	if (card) {
		device_lock(&card->dev);
		labmdev_card_goes(card);
		device_unlock(&card->dev);
		pci_dev_put(card);
	}
	strscpy(line, value, sizeof(line));
	strscpy(mediated, strim(line), sizeof(mediated));
	card = is_ready ? card_called(mediated) : NULL;
	if (card) {
		device_lock(&card->dev);
		if (card->dev.driver && !strcmp(card->dev.driver->name, "nvidia"))
			labmdev_card_came(card);
		device_unlock(&card->dev);
		kobject_uevent(&card->dev.kobj, KOBJ_CHANGE);
		pci_dev_put(card);
	}
	mutex_unlock(&parent_lock);
	return 0;
}

static int get_mediated(char *out, const struct kernel_param *param)
{
	return sysfs_emit(out, "%s\n", mediated);
}

static const struct kernel_param_ops mediated_ops = { .set = set_mediated, .get = get_mediated };
module_param_cb(mediated, &mediated_ops, NULL, 0600);

int labmdev_init(void)
{
	int result;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(kinds); i++)
		types[i] = &kinds[i].type;
	result = mdev_register_driver(&labmdev_driver);
	is_ready = !result;
	return result;
}

void labmdev_exit(void)
{
	mdev_unregister_driver(&labmdev_driver);
}
